// The LoRA of a job, each with its scale.

import { html } from "../lib/view.js";

export function LoraRows({ names, rows, onChange }) {
  if (!names.length) return null;
  const unused = names.filter((name) => !rows.some((row) => row.name === name));
  const set = (at, change) => onChange(rows.map((row, number) => (number === at ? { ...row, ...change } : row)));
  return html`
    <fieldset class="loras">
      <legend>LoRA</legend>
      ${rows.map(
        (row, at) => html`<div class="row">
          <span>${row.name}</span>
          <input type="number" step="0.05" min="-10" max="10" aria-label=${`Scale of ${row.name}`} value=${row.scale} onInput=${(event) => set(at, { scale: event.target.value })} />
          <button type="button" class="quiet" aria-label=${`Remove ${row.name}`} onClick=${() => onChange(rows.filter((each) => each !== row))}>✕</button>
        </div>`,
      )}
      ${unused.length > 0 &&
      html`<select aria-label="Add a LoRA" value="" onChange=${(event) => event.target.value && onChange([...rows, { name: event.target.value, scale: "1" }])}>
        <option value="">add…</option>
        ${unused.map((name) => html`<option value=${name}>${name}</option>`)}
      </select>`}
    </fieldset>
  `;
}
