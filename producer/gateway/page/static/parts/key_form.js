// Ask for the key of the gateway.

import { storeKey } from "../lib/api.js";
import { html, useState } from "../lib/view.js";

export function KeyForm({ problem, hadKey, onKey }) {
  const [key, setKey] = useState("");
  const [remember, setRemember] = useState(false);
  const submit = (event) => {
    event.preventDefault();
    storeKey(key.trim(), remember);
    onKey();
  };
  return html`
    <main id="main" class="welcome">
      <img src="assets/icon.svg" alt="" width="56" height="56" />
      <h1>imagefleet</h1>
      <p>${hadKey ? problem.message : "This gateway asks for a key. Whoever runs the fleet makes one:"}</p>
      ${!hadKey && html`<pre><code>imagefleet keys create --name me --tenant mine</code></pre>`}
      <form class="panel" onSubmit=${submit}>
        <label for="key">Key</label>
        <input id="key" type="password" autocomplete="current-password" required spellcheck="false"
          placeholder="ifk_…" value=${key} onInput=${(event) => setKey(event.target.value)} />
        <label class="check">
          <input type="checkbox" checked=${remember} onChange=${(event) => setRemember(event.target.checked)} />
          Keep it in this browser, not only in this tab
        </label>
        <button class="main">Open</button>
      </form>
    </main>
  `;
}
