// What a screen reader is told of changes that one sees.

import { html, useEffect, useState } from "../lib/view.js";

const listeners = new Set();

export function announce(text) {
  for (const listener of listeners) listener(text);
}

export function Announcer() {
  const [text, setText] = useState("");
  useEffect(() => {
    listeners.add(setText);
    return () => listeners.delete(setText);
  }, []);
  return html`<p class="hidden" role="status" aria-live="polite">${text}</p>`;
}
