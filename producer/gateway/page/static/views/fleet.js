// What operators look at: what is wrong, hosts, queues, failures, dead letters, callbacks.

import { api } from "../lib/api.js";
import { bytes, count, duration, percent, several, when } from "../lib/format.js";
import { useRefreshed } from "../lib/refreshed.js";
import { html } from "../lib/view.js";
import { announce } from "../parts/announcer.js";
import { Problem, Waiting } from "../parts/notice.js";
import { Table } from "../parts/table.js";

const REFRESH_MS = 5000;
const PARTS = { fleet: "v1/fleet", alerts: "v1/fleet/alerts", failures: "v1/fleet/failures", letters: "v1/fleet/dead-letters", callbacks: "v1/fleet/callbacks" };

export function Fleet({ onError }) {
  const load = async () => {
    const answers = await Promise.all(Object.values(PARTS).map((path) => api(path)));
    return Object.fromEntries(Object.keys(PARTS).map((name, at) => [name, answers[at]]));
  };
  const { value: all, problem, setProblem, refresh } = useRefreshed(load, { pause: () => REFRESH_MS, onError });
  const act = async (path, said) => {
    try {
      announce(said(await api(path, { method: "POST" })));
      await refresh();
    } catch (error) {
      setProblem(error);
      onError(error);
    }
  };
  return html`
    <h1>Fleet</h1>
    <${Problem} error=${problem} />
    ${!all && !problem && html`<${Waiting} what="Loading…" />`}
    ${all && html`
      <${LanesDown} lanes=${all.fleet.lanes_down} />
      <${Alerts} alerts=${all.alerts.data} />
      <${Figures} fleet=${all.fleet} />
      <${Hosts} fleet=${all.fleet} />
      <${Queues} queues=${all.fleet.queues} />
      <${Failures} failures=${all.failures.data} />
      <${DeadLetters} letters=${all.letters.data} act=${act} />
      <${Callbacks} callbacks=${all.callbacks.data} act=${act} />
    `}
  `;
}

function LanesDown({ lanes }) {
  if (!lanes.length) return null;
  return html`<article class="alert" role="status">
    <h3>${lanes.length === 1 ? "A lane of the cluster does" : "Lanes of the cluster do"} not answer: ${lanes.join(", ")}</h3>
    <p>Jobs there wait. Figures are as they were last; failed jobs, dead letters and callbacks of these lanes are not listed.</p>
  </article>`;
}

function Alerts({ alerts }) {
  if (!alerts.length) return html`<p class="good" role="status">Nothing is wrong that an alert would tell.</p>`;
  return html`<section class="block" aria-label="Alerts">
    ${alerts.map((each) => html`<article class=${each.severity === "page" ? "alert" : "alert warning"}>
      <h3>${each.text}</h3><p>${each.what_to_do}</p>
    </article>`)}
  </section>`;
}

function Figures({ fleet }) {
  const alive = fleet.hosts.filter((host) => host.state !== "lost" && host.state !== "gone").length;
  const { used_bytes: used, limit_bytes: limit } = fleet.redis;
  const figures = [
    ["hosts", count(alive)],
    ["images a minute", count(fleet.rates.images_per_minute)],
    ["waiting", count(fleet.waiting)],
    ["being made", count(fleet.in_flight)],
    ["failed an hour", count(Math.round(fleet.rates.failed_per_hour))],
    ["memory of Redis", limit ? percent(used / limit) : bytes(used)],
  ];
  return html`<dl class="figures">${figures.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Hosts({ fleet }) {
  const columns = [
    ["Host", (host) => host.name],
    ["State", (host) => host.state],
    ["Model", (host) => `${host.model ?? "–"} ${host.shapes.map((each) => each.replace("x", " × ")).join(", ")}`],
    ["Devices", (host) => host.devices || "–"],
    ["Fill", (host) => percent(host.fill), "number"],
    ["Busy", (host) => percent(host.busy), "number"],
    ["Images/min", (host) => count(host.images_per_minute), "number"],
    ["In flight", (host) => count(host.in_flight), "number"],
    ["Lease", (host) => duration(host.lease_s), "number"],
    ["Seen", (host) => (host.last_seen_s == null ? "–" : `${duration(host.last_seen_s)} ago`), "number"],
    ["Last problem", (host) => host.reason ?? ""],
  ];
  return html`<section class="block"><h2>Hosts</h2>
    <${Table} name="Hosts" columns=${columns} rows=${fleet.hosts} empty="No host has joined. Start a worker: imagefleet-worker" />
    ${fleet.differences.map((each) => html`<p class="note">${each.host}: ${each.text}</p>`)}
  </section>`;
}

function Queues({ queues }) {
  const columns = [
    ["Model", (queue) => queue.model],
    ["Shape", (queue) => (queue.shape ?? "any").replace("x", " × ")],
    ["Work", (queue) => (queue.work === "rows" ? "rows of datasets" : "jobs")],
    ["Waiting", (queue) => count(queue.waiting), "number"],
    ["Tenants", (queue) => count(queue.tenants), "number"],
    ["Oldest", (queue) => duration(queue.oldest_s), "number"],
  ];
  return html`<section class="block"><h2>Who waits</h2><${Table} name="Queues" columns=${columns} rows=${queues} empty="Nobody waits." /></section>`;
}

function Failures({ failures }) {
  const columns = [
    ["When", (each) => when(each.at)],
    ["Tenant", (each) => each.tenant ?? "–"],
    ["Host", (each) => each.host ?? "–"],
    ["Code", (each) => html`<code>${each.code ?? "–"}</code>`],
    ["Reason", (each) => each.reason ?? "–"],
    ["Job", (each) => html`<code>${each.own_id ?? each.job_id}</code>`],
  ];
  return html`<section class="block"><h2>Failed jobs</h2><${Table} name="Failed jobs" columns=${columns} rows=${failures} empty="No job has failed." /></section>`;
}

function DeadLetters({ letters, act }) {
  const one = (each) => html`<button type="button" class="quiet" disabled=${!each.can_be_redriven} aria-label=${`Redrive ${each.id}`}
    onClick=${() => act(`v1/fleet/dead-letters/${encodeURIComponent(each.id)}/redrive`, (answer) => answer.note || "Redriven.")}>Redrive</button>`;
  const columns = [
    ["When", (each) => when(each.at)],
    ["Tenant", (each) => each.tenant ?? "–"],
    ["Host", (each) => each.host ?? "–"],
    ["Code", (each) => html`<code>${each.code ?? "–"}</code>`],
    ["Reason", (each) => each.reason],
    ["Tries", (each) => count(each.deliveries), "number"],
    ["", one],
  ];
  return html`<section class="block">
    <div class="heading"><h2>Dead letters</h2>
      ${letters.length > 1 && html`<button type="button" onClick=${() => act("v1/fleet/dead-letters/redrive", (answer) => `${several(answer.redriven, "letter")} redriven.`)}>Redrive all</button>`}
    </div>
    <${Table} name="Dead letters" columns=${columns} rows=${letters} empty="No message was given up." />
  </section>`;
}

function Callbacks({ callbacks, act }) {
  const columns = [
    ["When", (each) => when(each.at)],
    ["Receiver", (each) => each.receiver],
    ["Answer", (each) => each.status ?? each.verdict ?? "–"],
    ["Reason", (each) => each.reason ?? "–"],
    ["Tries", (each) => count(each.attempts), "number"],
    ["", (each) => html`<button type="button" class="quiet" aria-label=${`Send ${each.id} again`}
      onClick=${() => act(`v1/fleet/callbacks/${encodeURIComponent(each.id)}/replay`, () => "Sent again.")}>Send again</button>`],
  ];
  return html`<section class="block"><h2>Callbacks given up</h2><${Table} name="Callbacks given up" columns=${columns} rows=${callbacks} empty="Every callback was received." /></section>`;
}
