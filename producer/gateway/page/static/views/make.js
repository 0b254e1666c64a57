// Order images: prompts, parameters, a start image with a mask, and what was ordered in this browser.

import { api } from "../lib/api.js";
import { several } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/view.js";
import { announce } from "../parts/announcer.js";
import { ImageDialog } from "../parts/image_dialog.js";
import { JobCard } from "../parts/job_card.js";
import { LoraRows } from "../parts/lora_rows.js";
import { forget, madeJobs } from "../parts/made_jobs.js";
import { MaskEditor } from "../parts/mask_editor.js";
import { Empty, Problem } from "../parts/notice.js";
import { onStart, setStart, startImage } from "../parts/start_image.js";
import { order } from "../parts/submit.js";

const MOST_PROMPTS = 100;
const NOTHING = { prompts: "", negative_prompt: "", model: "", size: "", num_images_per_prompt: 1, seed: "",
  num_inference_steps: "", guidance_scale: "", scheduler: "", strength: "0.8", loras: [], format: "" };

export function Make({ me, onError }) {
  const [models, setModels] = useState(null);
  const [ids, setIds] = useState(madeJobs);
  const [opened, setOpened] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    api("v1/models").then((list) => setModels(list.data), (error) => (setProblem(error), onError(error)));
  }, []);
  const mayRead = me.scopes.includes("read");
  return html`
    <div class="make">
      <section class="order" aria-labelledby="order">
        <h1 id="order">Make images</h1>
        <${Problem} error=${problem} />
        ${models?.length === 0 && html`<p class="note">No worker has offered a model yet. Start one with <code>imagefleet-worker</code>; this page shows it when it is ready.</p>`}
        <${OrderForm} models=${models ?? []} onMade=${() => setIds(madeJobs())} onError=${onError} />
      </section>
      <section class="made" aria-label="Made in this browser">
        ${!mayRead && html`<p class="note">This key may order images, not look at them. Jobs show no picture here.</p>`}
        ${ids.length === 0 && html`<${Empty} title="Nothing made yet"><p>Write what you would like to see. Each line is an image of its own.</p><//>`}
        <div class="cards">
          ${mayRead && ids.map((id) => html`<${JobCard} key=${id} id=${id} onError=${onError}
            onOpen=${(job, number) => setOpened({ job, number })} onForget=${(each) => (forget(each), setIds(madeJobs()))} />`)}
          ${!mayRead && ids.map((id) => html`<article class="card" key=${id}><p class="prompt"><code>${id}</code></p></article>`)}
        </div>
      </section>
      ${opened && html`<${ImageDialog} ...${opened} me=${me} onError=${onError} onClose=${() => (setOpened(null), setIds(madeJobs()))} />`}
    </div>
  `;
}

function OrderForm({ models, onMade, onError }) {
  const [form, setForm] = useState(NOTHING);
  const [image, setImage] = useState(startImage);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const tools = useRef(null);
  useEffect(() => onStart(setImage), []);
  useEffect(() => {
    const paste = (event) => takeFile(event.clipboardData?.files, setProblem);
    addEventListener("paste", paste);
    return () => removeEventListener("paste", paste);
  }, []);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const model = models.find((each) => each.id === form.model) ?? models[0];
  const size = model?.sizes.includes(form.size) ? form.size : model?.sizes[0];
  const [width, height] = (size ?? "64x64").split("x").map(Number);
  const prompts = form.prompts.split("\n").map((line) => line.trim()).filter(Boolean);
  const submit = async (event) => {
    event?.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const shared = inputOf(form, model, width, height, image && tools.current);
      for (const prompt of prompts.length ? prompts : [""]) await order({ ...shared, prompt });
      announce(`${several(prompts.length, "job")} ordered.`);
    } catch (error) {
      setProblem(error);
      onError(error);
    }
    onMade();
    setBusy(false);
  };
  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && prompts.length) submit(event);
  };
  const drop = (event) => {
    event.preventDefault();
    takeFile(event.dataTransfer.files, setProblem);
  };
  return html`
    <form onSubmit=${submit} onKeyDown=${onKey} onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
      <label for="prompts">Prompts, one a line</label>
      <textarea id="prompts" rows="5" placeholder="a small red circle on the left on a blue background" value=${form.prompts} onInput=${set("prompts")}></textarea>
      <div class="fields">
        <${Choice} id="model" title="Model" value=${model?.id} options=${models.map((each) => each.id)} onChange=${set("model")} />
        <${Choice} id="size" title="Size" value=${size} options=${model?.sizes ?? []} onChange=${set("size")} />
        <${Count} id="images" title="Images each" min="1" max="64" value=${form.num_images_per_prompt} onInput=${set("num_images_per_prompt")} />
        <${Count} id="seed" title="Seed" min="0" max="4294967295" placeholder="random" value=${form.seed} onInput=${set("seed")} />
      </div>
      <details>
        <summary>More</summary>
        <label for="negative">Without</label>
        <input id="negative" placeholder="what should not be seen" value=${form.negative_prompt} onInput=${set("negative_prompt")} />
        <div class="fields">
          <${Count} id="steps" title="Steps" min="1" max=${model?.max_num_inference_steps} placeholder=${model?.num_inference_steps} value=${form.num_inference_steps} onInput=${set("num_inference_steps")} />
          <${Count} id="guidance" title="Guidance" min="0" step="any" placeholder=${model?.guidance_scale} value=${form.guidance_scale} onInput=${set("guidance_scale")} />
          <${Choice} id="scheduler" title="Scheduler" value=${form.scheduler} empty=${`default: ${model?.scheduler ?? "–"}`} options=${model?.schedulers ?? []} onChange=${set("scheduler")} />
          <${Choice} id="format" title="Format" value=${form.format} empty="png" options=${["jpeg", "webp"]} onChange=${set("format")} />
        </div>
        <${LoraRows} names=${model?.loras ?? []} rows=${form.loras} onChange=${(loras) => setForm({ ...form, loras })} />
      </details>
      ${image
        ? html`<${MaskEditor} key=${size} image=${image} width=${width} height=${height} tools=${tools} onRemove=${() => setStart(null)} />
            <${Count} id="strength" title="Strength" min="0.01" max="1" step="any" value=${form.strength} onInput=${set("strength")} />`
        : html`<label class="drop"><input type="file" accept="image/png,image/jpeg,image/webp" class="hidden" onChange=${(event) => takeFile(event.target.files, setProblem)} /><span>Start from an image: choose, drop or paste it</span></label>`}
      <${Problem} error=${problem} />
      <button class="main" disabled=${busy || !models.length || !prompts.length || prompts.length > MOST_PROMPTS}>
        ${busy ? "Ordering…" : `Make ${several(Math.max(1, prompts.length) * (Number(form.num_images_per_prompt) || 1), "image")}`}
      </button>
      <p class="note">${prompts.length > MOST_PROMPTS ? `At most ${MOST_PROMPTS} prompts here; for more, make a dataset.` : "Ctrl + Enter orders."}</p>
    </form>
  `;
}

function Choice({ id, title, value, options, empty, onChange }) {
  return html`<div><label for=${id}>${title}</label><select id=${id} value=${value ?? ""} onChange=${onChange}>
    ${empty !== undefined && html`<option value="">${empty}</option>`}
    ${options.map((each) => html`<option value=${each}>${each.replace(/^(\d+)x(\d+)$/, "$1 × $2")}</option>`)}
  </select></div>`;
}

function Count({ id, title, ...others }) {
  return html`<div><label for=${id}>${title}</label><input id=${id} type="number" inputmode="decimal" ...${others} /></div>`;
}

async function takeFile(files, setProblem) {
  if (!files?.length) return;
  try {
    await setStart(files[0]);
    setProblem(null);
  } catch {
    setProblem(new Error(`${files[0].name}: this browser cannot read it as an image.`));
  }
}

/** Return what all prompts of the form have in common, as `input` of a prediction. */
function inputOf(form, model, width, height, tools) {
  const number = (text) => (text === "" || text == null ? null : Number(text));
  const mask = tools?.mask();
  return {
    negative_prompt: form.negative_prompt,
    model: model?.id,
    width,
    height,
    num_images_per_prompt: number(form.num_images_per_prompt),
    seed: number(form.seed),
    num_inference_steps: number(form.num_inference_steps),
    guidance_scale: number(form.guidance_scale),
    scheduler: form.scheduler,
    format: form.format,
    loras: form.loras.length ? form.loras.map(({ name, scale }) => [name, Number(scale)]) : null,
    image: tools ? tools.picture() : null,
    mask_image: mask,
    strength: tools ? number(form.strength) : null,
  };
}
