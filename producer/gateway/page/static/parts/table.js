// A table that scrolls sideways by itself where it is wider than the page.

import { html } from "../lib/view.js";

/** `columns` are a title, a function from row to content, and perhaps a class. */
export function Table({ name, columns, rows, empty }) {
  if (!rows.length) return html`<p class="note">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${name}>
    <table>
      <thead><tr>${columns.map(([title, , kind]) => (title ? html`<th scope="col" class=${kind}>${title}</th>` : html`<td></td>`))}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${columns.map(([, content, kind]) => html`<td class=${kind}>${content(row)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}
