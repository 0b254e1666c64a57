// Empty places, problems and waiting, in one look.

import { html } from "../lib/view.js";

export function Empty({ title, children }) {
  return html`<section class="empty"><h2>${title}</h2>${children}</section>`;
}

export function Problem({ error, onAgain }) {
  if (!error) return null;
  return html`<p class="problem" role="alert">
    ${error.message} ${onAgain && html`<button type="button" class="quiet" onClick=${onAgain}>Try again</button>`}
  </p>`;
}

export function Waiting({ what }) {
  return html`<p class="waiting" role="status">${what}</p>`;
}
