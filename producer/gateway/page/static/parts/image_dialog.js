// One image in full size, with everything that made it, and what can be done with it.

import { api } from "../lib/api.js";
import { bytes, duration, label, valueText, when } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/view.js";
import { announce } from "./announcer.js";
import { asCommand, asCurl, asPython } from "./clipboard.js";
import { order, randomSeed } from "./submit.js";
import { setStart } from "./start_image.js";

const GRID = 4;
const LEFT_OUT = ["prompt", "preview"];

export function ImageDialog({ job: shown, number, me, onClose, onError }) {
  const dialog = useRef(null);
  const [at, setAt] = useState(number);
  const [job, setJob] = useState(shown);
  useEffect(() => dialog.current.showModal(), []);
  useEffect(() => {
    // The list has what was given; one job also has what its model chose.
    api(`v1/jobs/${encodeURIComponent(shown.id)}`).then(setJob, onError);
  }, [shown.id]);
  const move = (by) => setAt((at + by + job.images.length) % job.images.length);
  const onKey = (event) => {
    if (job.images.length > 1 && event.key === "ArrowRight") move(1);
    if (job.images.length > 1 && event.key === "ArrowLeft") move(-1);
  };
  const image = job.images[at];
  return html`
    <dialog ref=${dialog} class="viewer" aria-labelledby="viewed" onClose=${onClose} onKeyDown=${onKey}>
      <form method="dialog" class="close"><button class="quiet" aria-label="Close">✕</button></form>
      <figure>
        ${image
          ? html`<a href=${image.url} target="_blank" rel="noreferrer" title="Open the file"><img src=${image.url} alt=${job.parameters.prompt} width=${image.width} height=${image.height} /></a>`
          : html`<span>The image was deleted.</span>`}
        ${job.images.length > 1 &&
        html`<figcaption>
          <button type="button" class="quiet" aria-label="Image before" onClick=${() => move(-1)}>←</button>
          image ${at + 1} of ${job.images.length}
          <button type="button" class="quiet" aria-label="Next image" onClick=${() => move(1)}>→</button>
        </figcaption>`}
      </figure>
      <section class="details">
        <h2 id="viewed">${job.parameters.prompt || "(no prompt)"}</h2>
        <${Actions} job=${job} image=${image} me=${me} onDone=${() => dialog.current?.close()} onError=${onError} />
        <${Parameters} job=${job} image=${image} />
      </section>
    </dialog>
  `;
}

function Parameters({ job, image }) {
  const rows = Object.entries(job.parameters)
    .filter(([name, value]) => !LEFT_OUT.includes(name) && value !== null && value !== "")
    .map(([name, value]) => [label(name), valueText(value)]);
  if (image) {
    rows.push(["seed", String(image.seed)], ["image", `${image.index + 1} of ${job.images.length}`]);
    rows.push(["file", `${image.width} × ${image.height} ${image.format}, ${bytes(image.size)}`]);
  }
  if (job.inputs.length) rows.push(["started from", job.inputs.map(label).join(", ")]);
  rows.push(["made", when(job.ended_at)], ["took", duration(job.seconds)]);
  if (job.host) rows.push(["host", job.host]);
  if (job.images_kept_until) rows.push(["kept until", when(job.images_kept_until)]);
  const seen = new Map(rows); // An image's own seed stands for that of the job.
  return html`<dl>${[...seen].map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}<div><dt>id</dt><dd><code>${job.id}</code></dd></div></dl>`;
}

function Actions({ job, image, me, onDone, onError }) {
  const [problem, setProblem] = useState(null);
  const mayMake = me.scopes.includes("submit");
  const canRepeat = !job.inputs.some((name) => !(name in job.parameters));
  const make = async (...inputs) => {
    try {
      for (const input of inputs) await order(input);
      onDone();
      location.hash = "#/make";
    } catch (error) {
      setProblem(error);
      onError(error);
    }
  };
  const again = () => make({ ...job.parameters, seed: seedOf(job) });
  const others = () => {
    const { image_index: _index, num_images_per_prompt: _images, ...same } = job.parameters;
    return make(...Array.from({ length: GRID }, () => ({ ...same, seed: randomSeed() })));
  };
  const start = async () => {
    await setStart(image.url);
    onDone();
    location.hash = "#/make";
  };
  return html`
    <div class="actions">
      ${mayMake && canRepeat && html`<button type="button" onClick=${again}>Make again</button><button type="button" onClick=${others}>Another seed ×${GRID}</button>`}
      ${mayMake && image && html`<button type="button" onClick=${start}>Start from this</button>`}
      ${image && html`<a class="button" href=${image.url} download=${`${job.id}-${image.index}.${image.format}`}>Download</a>`}
    </div>
    <div class="actions copies"><${Copies} job=${job} /></div>
    ${mayMake && !canRepeat && html`<p class="note">The image that it started from was not kept, so it cannot be made again from here.</p>`}
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
  `;
}

function Copies({ job }) {
  const parameters = { ...job.parameters, seed: seedOf(job) };
  const copy = (name, text) => async () => {
    await navigator.clipboard.writeText(text);
    announce(`Copied as ${name}.`);
  };
  const origin = new URL(".", location.href).href.replace(/\/$/, "");
  return html`
    <span class="note">Copy as</span>
    <button type="button" class="quiet" onClick=${copy("Python", asPython(parameters))}>Python</button>
    <button type="button" class="quiet" onClick=${copy("curl", asCurl(parameters, origin))}>curl</button>
    <button type="button" class="quiet" onClick=${copy("a command", asCommand(parameters))}>command</button>
  `;
}

function seedOf(job) {
  return job.parameters.seed ?? job.images[0]?.seed;
}
