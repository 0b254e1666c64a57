// The page: who uses it, which view is open, and what is shown if the gateway or Redis is away.

import { ApiError, api, forgetKey, isOutage, storedKey } from "./lib/api.js";
import { html, render, useCallback, useEffect, useState } from "./lib/view.js";
import { Announcer } from "./parts/announcer.js";
import { KeyForm } from "./parts/key_form.js";
import { Datasets } from "./views/datasets.js";
import { Fleet } from "./views/fleet.js";
import { Gallery } from "./views/gallery.js";
import { Make } from "./views/make.js";

const VIEWS = [
  { path: "make", title: "Make", scope: "submit", view: Make },
  { path: "gallery", title: "Gallery", scope: "read", view: Gallery },
  { path: "datasets", title: "Datasets", scope: "read", view: Datasets },
  { path: "fleet", title: "Fleet", scope: "operate", view: Fleet },
];
const RETRY_MS = 3000;

/** The hash of the address: `#/gallery/ID?prompt=red` has a path of two parts, and a query. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

function usePlace() {
  const [here, setHere] = useState(place);
  useEffect(() => {
    const moved = () => setHere(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return here;
}

function App() {
  const here = usePlace();
  const [me, setMe] = useState(null);
  const [problem, setProblem] = useState(null);
  const [epoch, setEpoch] = useState(0); // It counts how often the fleet came back.

  const load = useCallback(async () => {
    try {
      setMe(await api("v1/me"));
      setProblem(null);
      setEpoch((number) => number + 1);
    } catch (error) {
      setProblem(error);
    }
  }, []);
  useEffect(() => void load(), []);
  useEffect(() => {
    if (!problem || !isOutage(problem)) return undefined;
    const timer = setTimeout(load, RETRY_MS);
    return () => clearTimeout(timer);
  }, [problem]);

  const onError = useCallback((error) => {
    if (isOutage(error) || (error instanceof ApiError && error.status === 401)) setProblem(error);
    else console.error(error);
  }, []);

  if (problem && !isOutage(problem) && !me) {
    return html`<${KeyForm} problem=${problem} hadKey=${storedKey() !== null} onKey=${load} />`;
  }
  if (problem?.status === 401) {
    return html`<${KeyForm} problem=${problem} hadKey=${true} onKey=${load} />`;
  }
  const offered = me ? VIEWS.filter((each) => me.scopes.includes(each.scope)) : [];
  const current = offered.find((each) => each.path === here.parts[0]) ?? offered[0];
  return html`
    <a class="skip" href="#main" onClick=${toMain}>Skip to the content</a>
    <${Header} me=${me} offered=${offered} current=${current} />
    ${problem && html`<${Outage} problem=${problem} />`}
    <main id="main" tabindex="-1">
      ${current
        ? html`<${current.view} key=${`${current.path} ${epoch}`} me=${me} here=${here} onError=${onError} />`
        : !problem && html`<p class="starting" role="status">${me ? "This key may neither make nor read images." : "Loading…"}</p>`}
    </main>
    <${Announcer} />
  `;
}

function toMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Header({ me, offered, current }) {
  useEffect(() => {
    document.title = current ? `${current.title} · imagefleet` : "imagefleet";
  }, [current]);
  const leave = () => {
    forgetKey();
    location.reload();
  };
  return html`
    <header class="top">
      <a class="brand" href="#/"><img src="assets/icon.svg" alt="" width="24" height="24" /> imagefleet</a>
      <nav aria-label="Views">
        ${offered.map(
          (each) => html`<a
            href=${`#/${each.path}`}
            aria-current=${each === current ? "page" : undefined}
            >${each.title}</a
          >`,
        )}
      </nav>
      <p class="who">
        ${me && html`<span title=${me.key ? `Key ${me.key}` : "No key is needed on this host"}>${me.tenant ?? "this host"}</span>`}
        ${me?.key && html`<button type="button" class="quiet" onClick=${leave}>Change key</button>`}
      </p>
    </header>
  `;
}

function Outage({ problem }) {
  return html`<p class="banner" role="alert">
    ${problem.message} <span>The page tries again by itself; what was accepted is not lost.</span>
  </p>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
