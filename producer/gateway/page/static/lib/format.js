// Numbers, times and names as people read them.

const WHEN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const NUMBER = new Intl.NumberFormat();

/** Seconds since 1970 as date and time. */
export function when(seconds) {
  return seconds == null ? "–" : WHEN.format(new Date(seconds * 1000));
}

/** The time if it is of today, else the day. */
export function moment(seconds) {
  const date = new Date(seconds * 1000);
  return (date.toDateString() === new Date().toDateString() ? TIME : DAY).format(date);
}

/** A length of time in at most two units. */
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.round((seconds % 86400) / 3600)} h`;
}

export function count(number) {
  return number == null ? "–" : NUMBER.format(number);
}

export function several(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

export function percent(share) {
  return share == null ? "–" : `${Math.round(100 * share)} %`;
}

export function bytes(number) {
  if (number == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = number;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const STATES = {
  queued: "waiting",
  running: "running",
  succeeded: "done",
  failed: "failed",
  cancelled: "cancelled",
  starting: "waiting",
  processing: "running",
  canceled: "cancelled",
  completed: "done",
  validating: "being read",
  in_progress: "running",
  finalizing: "being finished",
  cancelling: "being cancelled",
};

export function stateInWords(state) {
  return STATES[state] ?? state;
}

export function isOver(state) {
  return ["succeeded", "failed", "cancelled", "canceled"].includes(state);
}

/** The name of a parameter as a heading: `num_inference_steps` is "steps". */
export function label(name) {
  const short = {
    num_inference_steps: "steps",
    guidance_scale: "guidance",
    num_images_per_prompt: "images",
    negative_prompt: "without",
  };
  return short[name] ?? name.replaceAll("_", " ");
}

/** A value of a parameter as text. */
export function valueText(value) {
  if (value !== null && typeof value === "object") {
    return Array.isArray(value)
      ? value.map(valueText).join(", ")
      : Object.entries(value).map(([name, each]) => `${name} ${valueText(each)}`).join(", ");
  }
  return String(value);
}
