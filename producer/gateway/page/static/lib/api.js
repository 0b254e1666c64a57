// Requests to the gateway. The page uses its public HTTP interface and nothing else.

const KEY = "imagefleet.key";

/** An answer that is no success. `status` is 0 if the gateway could not be reached. */
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export function storedKey() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
}

/** Keep the key for this tab, or for this browser. */
export function storeKey(key, remember) {
  forgetKey();
  (remember ? localStorage : sessionStorage).setItem(KEY, key);
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
}

export function headers(more = {}) {
  const key = storedKey();
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** Return the JSON of an answer; null if it has none. Throws ApiError. */
export async function api(path, { method = "GET", query = {}, body, signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  const sent = body === undefined ? {} : { "Content-Type": "application/json" };
  let answer;
  try {
    answer = await fetch(path + search, {
      method,
      headers: headers(sent),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The gateway does not answer.");
  }
  const text = await answer.text();
  const json = parse(text);
  if (answer.ok) return json;
  const retryAfter = Number(answer.headers.get("Retry-After")) || null;
  throw new ApiError(answer.status, messageOf(json) ?? `The gateway answered ${answer.status}.`, retryAfter);
}

function parse(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

// Routes in OpenAI's form have `error.message`, those in Replicate's have `detail`.
function messageOf(json) {
  return json?.error?.message ?? json?.detail ?? null;
}

/** Whether the page should try the same again by itself. */
export function isOutage(error) {
  return error instanceof ApiError && (error.status === 0 || error.status === 502 || error.status === 503);
}
