// Read server-sent events with fetch, because EventSource cannot send a key.

import { ApiError, headers } from "./api.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

/**
 * Call `onEvent(name, data)` for each event until it returns true, or `signal` is aborted.
 * A stream that breaks is taken up again after the last event that came.
 */
export async function follow(path, onEvent, signal) {
  let lastId = null;
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    try {
      const more = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
      const answer = await fetch(path, { headers: headers(more), signal, cache: "no-store" });
      if (!answer.ok) {
        if (answer.status < 500 && answer.status !== 429) throw new ApiError(answer.status, "No such stream.");
        throw new TypeError("try again");
      }
      for await (const event of readEvents(answer.body)) {
        pause = FIRST_PAUSE_MS;
        lastId = event.id ?? lastId;
        if (onEvent(event.name, event.data)) return;
      }
    } catch (error) {
      if (signal.aborted || error instanceof ApiError) return;
    }
    await sleep(pause, signal);
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split(/\r?\n\r?\n/);
    text = parts.pop();
    for (const part of parts) {
      const event = readEvent(part);
      if (event) yield event;
    }
  }
}

function readEvent(part) {
  const event = { name: "message", id: null, data: [] };
  for (const line of part.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data.push(value);
  }
  if (!event.data.length) return null;
  const text = event.data.join("\n");
  try {
    return { ...event, data: JSON.parse(text) };
  } catch {
    return { ...event, data: text };
  }
}

export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
