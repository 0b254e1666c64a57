// All jobs of the tenant, page by page, the newest first.

import { api } from "../lib/api.js";
import { isOver, moment, stateInWords, when } from "../lib/format.js";
import { useRefreshed } from "../lib/refreshed.js";
import { html, useState } from "../lib/view.js";
import { ImageDialog } from "../parts/image_dialog.js";
import { Empty, Problem, Waiting } from "../parts/notice.js";

const STATES = ["queued", "running", "succeeded", "failed", "cancelled"];
const FILTERS = ["prompt", "state", "model", "lora", "seed", "from", "to", "starred"];
const LIMIT = 48;
const UNFINISHED_MS = 4000;

export function Gallery({ me, here, onError }) {
  const [opened, setOpened] = useState(null);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, here.query.get(name) ?? ""]));
  const cursor = here.query.get("cursor") ?? "";
  const address = here.query.toString();
  const load = () =>
    api("v1/jobs", { query: { ...filters, from: seconds(filters.from), to: seconds(filters.to, 1), limit: LIMIT, cursor } });
  const pause = ({ data }) => (data.some((job) => !isOver(job.state)) ? UNFINISHED_MS : null);
  const { value: page, setValue: setPage, problem, refresh } = useRefreshed(load, { inputs: [address], pause, onError });
  const star = async (job) => {
    try {
      await api(`v1/jobs/${encodeURIComponent(job.id)}/star`, { method: job.starred ? "DELETE" : "PUT" });
      setPage({ ...page, data: page.data.map((each) => (each.id === job.id ? { ...each, starred: !job.starred } : each)) });
    } catch (error) {
      onError(error);
    }
  };
  const isFiltered = Object.values(filters).some(Boolean);
  return html`
    <div class="gallery">
      <h1 class="hidden">Gallery</h1>
      <${Filters} key=${address} filters=${filters} />
      <${Problem} error=${problem} onAgain=${refresh} />
      ${!page && !problem && html`<${Waiting} what="Loading…" />`}
      ${page?.data.length === 0 && page.complete && html`<${Nothing} isFiltered=${isFiltered} isLater=${cursor !== ""} />`}
      <ul class="grid" aria-label="Jobs">
        ${page?.data.map((job) => html`<${Tile} key=${job.id} job=${job} mayStar=${me.scopes.includes("submit")}
          onStar=${() => star(job)} onOpen=${(number) => setOpened({ job, number })} />`)}
      </ul>
      ${page && html`<${Pages} page=${page} query=${here.query} />`}
      ${opened && html`<${ImageDialog} ...${opened} me=${me} onError=${onError} onClose=${() => setOpened(null)} />`}
    </div>
  `;
}

/** A day as Unix seconds, at its beginning or `later` days on. */
function seconds(day, later = 0) {
  if (!day) return "";
  const date = new Date(`${day}T00:00:00`);
  date.setDate(date.getDate() + later);
  return date.getTime() / 1000;
}

function go(query) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  location.hash = `#/gallery${text ? `?${text}` : ""}`;
}

function Filters({ filters }) {
  const [form, setForm] = useState(filters);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const choose = (name, value) => go({ ...form, [name]: value });
  const submit = (event) => {
    event.preventDefault();
    go(form);
  };
  const more = ["model", "lora", "seed", "from", "to"].some((name) => form[name]);
  return html`
    <form class="filters" role="search" onSubmit=${submit}>
      <input type="search" aria-label="Search in prompts" placeholder="Search in prompts" value=${form.prompt} onInput=${set("prompt")} />
      <select aria-label="State" value=${form.state} onChange=${(event) => choose("state", event.target.value)}>
        <option value="">all states</option>
        ${STATES.map((each) => html`<option value=${each}>${stateInWords(each)}</option>`)}
      </select>
      <button type="button" class="quiet" aria-pressed=${form.starred === "true"} onClick=${() => choose("starred", form.starred ? "" : "true")}>★ starred</button>
      <details open=${more}>
        <summary>More</summary>
        <div class="fields">
          <div><label for="f-model">Model</label><input id="f-model" value=${form.model} onInput=${set("model")} /></div>
          <div><label for="f-lora">LoRA</label><input id="f-lora" value=${form.lora} onInput=${set("lora")} /></div>
          <div><label for="f-seed">Seed</label><input id="f-seed" inputmode="numeric" value=${form.seed} onInput=${set("seed")} /></div>
          <div><label for="f-from">From</label><input id="f-from" type="date" value=${form.from} onInput=${set("from")} /></div>
          <div><label for="f-to">To</label><input id="f-to" type="date" value=${form.to} onInput=${set("to")} /></div>
        </div>
      </details>
      <button>Search</button>
    </form>
  `;
}

function Tile({ job, mayStar, onStar, onOpen }) {
  const [first] = job.images;
  const { prompt } = job.parameters;
  const name = prompt || "(no prompt)";
  return html`
    <li class="tile" data-state=${job.state} data-job=${job.id}>
      <button type="button" class="picture" onClick=${() => onOpen(0)} aria-label=${`Open ${name}`}>
        ${first
          ? html`<img src=${first.url} alt="" loading="lazy" width=${first.width} height=${first.height} />`
          : html`<span class="state">${job.error ? job.error.message : job.images_deleted ? "deleted" : stateInWords(job.state)}</span>`}
        ${job.images.length > 1 && html`<span class="badge">${job.images.length}</span>`}
      </button>
      <p class="prompt" title=${prompt}>${name}</p>
      <p class="facts">
        <time datetime=${new Date(1000 * job.created_at).toISOString()}>${moment(job.created_at)}</time>
        ${mayStar && html`<button type="button" class="star" aria-pressed=${job.starred} aria-label=${`Star ${name}`} onClick=${onStar}>${job.starred ? "★" : "☆"}</button>`}
      </p>
    </li>
  `;
}

function Nothing({ isFiltered, isLater }) {
  if (isLater) return html`<${Empty} title="Nothing older"><p>This was the end of the list.</p><//>`;
  if (isFiltered) return html`<${Empty} title="Nothing fits"><p><a href="#/gallery">Show everything</a></p><//>`;
  return html`<${Empty} title="No images yet"><p><a href="#/make">Make some</a>; all that are ordered through this gateway stand here.</p><//>`;
}

function Pages({ page, query }) {
  const to = (cursor) => {
    const next = new URLSearchParams(query);
    next.set("cursor", cursor);
    return `#/gallery?${next}`;
  };
  const isPartial = !page.complete && page.data.length < LIMIT; // The search took its time and answered.
  return html`
    <nav class="pages" aria-label="Pages">
      ${page.previous ? html`<a class="button" href=${to(page.previous)}>← Newer</a>` : html`<span></span>`}
      ${isPartial && page.searched_until && html`<span class="note">Searched back to ${when(page.searched_until)}.</span>`}
      ${page.next && html`<a class="button" href=${to(page.next)}>${isPartial ? "Search further back →" : "Older →"}</a>`}
    </nav>
  `;
}
