// A job as a program or a command that makes it again.

const LEFT_OUT = new Set(["format", "preview"]);

export function asPython(parameters) {
  const { prompt, ...others } = kept(parameters);
  const rest = Object.entries(others).map(([name, value]) => `    ${name}=${python(value)},\n`);
  return `from imagefleet import Client

client = Client()
job = client.submit(
    ${python(prompt)},
${rest.join("")})
print(job.result().images[0].url)
`;
}

export function asCurl(parameters, origin) {
  const body = JSON.stringify({ input: kept(parameters) });
  return `curl ${origin}/v1/predictions -H 'Prefer: wait' -H 'Content-Type: application/json' \\
  -H "Authorization: Bearer $IMAGEFLEET_KEY" -d ${quoted(body)}
`;
}

export function asCommand(parameters) {
  const { prompt, ...others } = kept(parameters);
  const options = Object.entries(others).map(([name, value]) => ` ${option(name, value)}`);
  return `imagefleet submit ${quoted(prompt)}${options.join("")} --wait\n`;
}

function kept(parameters) {
  return Object.fromEntries(
    Object.entries(parameters).filter(([name, value]) => value != null && !LEFT_OUT.has(name)),
  );
}

function option(name, value) {
  if (name === "loras") {
    const pairs = Array.isArray(value) ? value : Object.entries(value);
    return pairs.map(([each, scale]) => `--lora ${quoted(`${each}:${scale}`)}`).join(" ");
  }
  const flag = `--${name.replaceAll("_", "-")}`;
  return value === true ? flag : `${flag} ${quoted(String(value))}`;
}

function quoted(text) {
  return /^[\w.,:/=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${python(name)}: ${python(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
