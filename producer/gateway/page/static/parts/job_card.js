// One job that was just made: its place, its steps, a preview that grows, and its images.

import { api } from "../lib/api.js";
import { stateInWords, isOver, several } from "../lib/format.js";
import { follow, sleep } from "../lib/stream.js";
import { html, useEffect, useState } from "../lib/view.js";
import { announce } from "./announcer.js";

// A browser opens six connections to a host. Streams must leave some for everything else.
const STREAMS = 3;
const POLL_MS = 2500;
let streams = 0;

/** Return the job as it is now, with the newest preview. */
export function useJob(id, onError) {
  const [job, setJob] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    watch(id, (change) => setJob((old) => ({ ...old, ...change })), stop.signal).catch((problem) => {
      if (stop.signal.aborted) return;
      setError(problem);
      onError(problem);
    });
    return () => stop.abort();
  }, [id]);
  return [job, error];
}

async function watch(id, change, signal) {
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  for (;;) {
    const job = await api(path, { signal });
    change(job);
    if (isOver(job.state) || signal.aborted) return;
    if (streams < STREAMS) {
      streams += 1;
      try {
        await follow(`v1/predictions/${encodeURIComponent(id)}/events`, (name, data) => apply(name, data, change), signal);
      } finally {
        streams -= 1;
      }
    } else {
      await sleep(POLL_MS, signal);
    }
  }
}

function apply(name, data, change) {
  if (name === "queued") change({ state: "queued", ahead: data.jobs_in_queue ?? null });
  else if (name === "started") change({ state: "running", ahead: null });
  else if (name === "step") change({ state: "running", progress: data });
  else if (name === "preview") change({ preview: data.image });
  return name === "done";
}

export function JobCard({ id, onOpen, onForget, onError }) {
  const [job, error] = useJob(id, onError);
  const [cancelling, setCancelling] = useState(false);
  const over = job && isOver(job.state);
  useEffect(() => {
    if (over) announce(`${job.parameters.prompt}: ${stateInWords(job.state)}`);
  }, [over]);
  if (error?.status === 404) return html`<${Gone} onForget=${() => onForget(id)} />`;
  if (!job?.parameters) return html`<article class="card" aria-busy="true"><div class="frame"></div><p class="facts">…</p></article>`;
  const cancel = async () => {
    setCancelling(true);
    await api(`v1/predictions/${encodeURIComponent(id)}/cancel`, { method: "POST" }).catch(onError);
  };
  return html`
    <article class="card" data-state=${job.state} data-job=${id}>
      <${Pictures} job=${job} onOpen=${onOpen} />
      <p class="prompt" title=${job.parameters.prompt}>${job.parameters.prompt || "(no prompt)"}</p>
      <p class="facts">
        <${Facts} job=${job} />
        ${!over && html`<button type="button" class="quiet" disabled=${cancelling} onClick=${cancel}>${cancelling ? "Cancelling…" : "Cancel"}</button>`}
        ${over && html`<button type="button" class="quiet" onClick=${() => onForget(id)} title="It stays in the gallery">Hide</button>`}
      </p>
    </article>
  `;
}

function Gone({ onForget }) {
  return html`<article class="card">
    <div class="frame"><span>no longer kept</span></div>
    <p class="facts"><button type="button" class="quiet" onClick=${onForget}>Hide</button></p>
  </article>`;
}

function Pictures({ job, onOpen }) {
  if (job.images?.length) {
    return html`<div class=${job.images.length > 1 ? "frame several" : "frame"}>
      ${job.images.map(
        (image, number) => html`<button type="button" class="picture" onClick=${() => onOpen(job, number)}>
          <img src=${image.url} alt=${job.parameters.prompt || "image without a prompt"} width=${image.width} height=${image.height} />
        </button>`,
      )}
    </div>`;
  }
  const { width, height } = job.parameters;
  const size = width && height ? `${width} / ${height}` : "1 / 1";
  return html`<div class="frame" style=${{ aspectRatio: size }}>
    ${job.preview
      ? html`<img class="preview" src=${job.preview} alt="a rough preview" />`
      : html`<span>${isOver(job.state) ? stateInWords(job.state) : "…"}</span>`}
  </div>`;
}

function Facts({ job }) {
  const { step, steps } = job.progress ?? {};
  if (job.state === "running" && steps) {
    return html`<progress max=${steps} value=${step} aria-label="steps"></progress><span class="steps">step ${step} of ${steps}</span>`;
  }
  if (job.state === "queued" && job.ahead) return html`<span>${several(job.ahead, "job")} in its queue</span>`;
  if (job.error) return html`<span class="wrong">${job.error.message}</span>`;
  const took = job.seconds == null ? "" : ` in ${job.seconds.toFixed(1)} s`;
  return html`<span>${stateInWords(job.state)}${took}</span>`;
}
