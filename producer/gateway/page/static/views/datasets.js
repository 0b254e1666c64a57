// Runs that make datasets: start a small one, watch, look at a sample, verify, repair.

import { api, isOutage } from "../lib/api.js";
import { bytes, count, several, stateInWords, valueText, when } from "../lib/format.js";
import { useRefreshed } from "../lib/refreshed.js";
import { html, useState } from "../lib/view.js";
import { Empty, Problem, Waiting } from "../parts/notice.js";
import { Table } from "../parts/table.js";

const REFRESH_MS = 3000;
const SAMPLE = 24;
const OVER = new Set(["completed", "failed", "cancelled", "expired"]);
const FORMATS = ["files", "webdataset", "parquet"];

export function Datasets({ me, here, onError }) {
  const [, id] = here.parts;
  return id
    ? html`<${Run} key=${id} id=${id} me=${me} onError=${onError} />`
    : html`<${Runs} me=${me} onError=${onError} />`;
}

function Runs({ me, onError }) {
  const pause = ({ data }) => (data.some((run) => !OVER.has(run.status)) ? REFRESH_MS : null);
  const { value: list, problem, refresh } = useRefreshed(() => api("v1/runs"), { pause, onError });
  return html`
    <div class="heading"><h1>Datasets</h1></div>
    <${Problem} error=${problem} onAgain=${refresh} />
    ${!list && !problem && html`<${Waiting} what="Loading…" />`}
    ${list && html`<ul class="runs">
      ${list.data.map((run) => html`<li class="run" key=${run.id}>
        <h3><a href=${`#/datasets/${encodeURIComponent(run.id)}`}>${run.metadata?.name ?? run.id}</a></h3>
        <p class="note">${stateInWords(run.status)}, ${when(run.created_at)}</p>
        <${Progress} run=${run} />
      </li>`)}
    </ul>`}
    ${list?.data.length === 0 && html`<${Empty} title="No datasets yet"><p>A dataset makes very many prompts. Start a small one here; large files go by <code>imagefleet bulk run</code> or the HTTP interface.</p><//>`}
    ${me.scopes.includes("submit") && html`<${NewRun} onMade=${(run) => (location.hash = `#/datasets/${encodeURIComponent(run.id)}`)} onError=${onError} />`}
  `;
}

function Progress({ run }) {
  const { total, completed, failed } = run.rows;
  return html`
    <progress class="wide" max=${total || 1} value=${completed ?? 0} aria-label="Rows made"></progress>
    <p class="note">${count(completed)} of ${several(total, "row")}${failed ? html`, <span class="wrong">${count(failed)} failed</span>` : ""}${run.rows.rejected ? html`, <span class="wrong">${count(run.rows.rejected)} rejected</span>` : ""}</p>
  `;
}

function NewRun({ onMade, onError }) {
  const [form, setForm] = useState({ name: "", rows: "", format: FORMATS[0], seed: "0", images: "1" });
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const rows = form.rows.split("\n").map((line) => line.trim()).filter(Boolean);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const run = await api("v1/runs", {
        method: "POST",
        body: { rows, format: form.format, seed: Number(form.seed), num_images_per_prompt: Number(form.images),
          ...(form.name ? { metadata: { name: form.name } } : {}) },
      });
      onMade(run);
    } catch (error) {
      setProblem(error);
      onError(error);
      setBusy(false);
    }
  };
  return html`
    <details class="block">
      <summary>Start a dataset</summary>
      <form class="panel" onSubmit=${submit}>
        <label for="rows">Prompts, one a line</label>
        <textarea id="rows" rows="6" required value=${form.rows} onInput=${set("rows")}></textarea>
        <div class="fields">
          <div><label for="name">Name</label><input id="name" maxlength="64" value=${form.name} onInput=${set("name")} /></div>
          <div><label for="d-format">Format</label><select id="d-format" value=${form.format} onChange=${set("format")}>${FORMATS.map((each) => html`<option>${each}</option>`)}</select></div>
          <div><label for="d-seed">Seed</label><input id="d-seed" type="number" min="0" value=${form.seed} onInput=${set("seed")} /></div>
          <div><label for="d-images">Images each</label><input id="d-images" type="number" min="1" value=${form.images} onInput=${set("images")} /></div>
        </div>
        <${Problem} error=${problem} />
        <button class="main" disabled=${busy || !rows.length}>Make ${several(rows.length * (Number(form.images) || 1), "image")}</button>
      </form>
    </details>
  `;
}

function Run({ id, me, onError }) {
  const path = `v1/runs/${encodeURIComponent(id)}`;
  const pause = ({ run }) => (!OVER.has(run.status) || isVerifying(run.verification) ? REFRESH_MS : null);
  const load = async () => {
    const [run, sample, files, rejected] = await Promise.all([
      api(path),
      optional(`${path}/sample`, { count: SAMPLE }),
      optional(`${path}/files`),
      optional(`${path}/rejected`, { limit: 50 }),
    ]);
    return { run, sample: sample?.data ?? [], files: files?.data ?? [], rejected: rejected?.data ?? [] };
  };
  const { value, problem, refresh } = useRefreshed(load, { pause, onError });
  const act = async (what) => {
    await api(`${path}/${what}`, { method: "POST" }).catch(onError);
    await refresh();
  };
  if (!value) return html`<${Problem} error=${problem} onAgain=${refresh} />${!problem && html`<${Waiting} what="Loading…" />`}`;
  const { run, sample, files, rejected } = value;
  const over = OVER.has(run.status);
  const mayMake = me.scopes.includes("submit");
  return html`
    <p><a href="#/datasets">← Datasets</a></p>
    <div class="heading">
      <h1>${run.metadata?.name ?? run.id}</h1>
      ${mayMake && html`<div class="actions">
        ${!over && html`<button type="button" onClick=${() => act("cancel")}>Cancel</button>`}
        ${over && html`<button type="button" onClick=${() => act("verify")}>Verify</button><button type="button" onClick=${() => act("repair")}>Repair</button>`}
      </div>`}
    </div>
    <${Problem} error=${problem} />
    <p class="note">${stateInWords(run.status)}${run.model ? `, ${run.model}` : ""}, since ${when(run.created_at)}. ${Object.entries(run.options).map(([name, each]) => `${name} ${valueText(each)}`).join(", ")}</p>
    <${Progress} run=${run} />
    ${[...run.errors, ...run.shard_errors].map((each) => html`<p class="problem">${each.message}</p>`)}
    <${Verification} found=${run.verification} />
    <section class="block"><h2>Sample</h2>
      ${sample.length === 0 && html`<p class="note">${over ? "There is nothing to show one by one." : "Images show here as soon as a shard is finished."}</p>`}
      <ul class="sample">${sample.map((each) => html`<li key=${each.key}><a href=${each.url}><img src=${each.url} alt=${each.prompt ?? each.key} title=${each.prompt} loading="lazy" /></a></li>`)}</ul>
    </section>
    ${rejected.length > 0 && html`<section class="block"><h2>Rejected rows</h2>
      <${Table} name="Rejected rows" rows=${rejected} columns=${[["Row", (each) => count(each.row + 1), "number"], ["Field", (each) => each.field ?? "–"], ["Value", (each) => valueText(each.value ?? "–")], ["Reason", (each) => each.reason]]} /></section>`}
    <section class="block"><h2>Files</h2>
      <${Table} name="Files" rows=${files.slice(0, 200)} empty="No shard is finished yet."
        columns=${[["File", (each) => html`<a href=${each.url}>${each.id}</a>`], ["Size", (each) => bytes(each.bytes), "number"], ["SHA-256", (each) => html`<code>${each.sha256?.slice(0, 16)}</code>`]]} />
    </section>
  `;
}

/** Return an answer, or null where this run or this gateway has none. */
async function optional(path, query = {}) {
  try {
    return await api(path, { query });
  } catch (error) {
    if (isOutage(error)) throw error;
    return null;
  }
}

function Verification({ found }) {
  if (!found) return null;
  if (found.state === "failed") return html`<p class="problem">The files could not be verified: ${found.error}</p>`;
  if (isVerifying(found)) {
    const doing = { queued: "It will be verified…", repairing: "Damaged shards are made again…" }[found.state] ?? "Verifying…";
    return html`<${Waiting} what=${`${doing} ${count(found.checked)} of ${several(found.shards, "shard")} read.`} />`;
  }
  if (!found.problem_count) return html`<p class="good" role="status">Verified: every file is as it was written.</p>`;
  return html`<section class="problem"><p>Verified: ${several(found.problem_count, "problem")}.</p>
    <ul>${found.problems.map((each) => html`<li>${each.shard}: ${each.what}, ${each.detail}</li>`)}</ul></section>`;
}

function isVerifying(found) {
  return found && !["done", "failed"].includes(found.state);
}
