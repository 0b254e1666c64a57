// The jobs that were made in this browser, so that a reload shows them again.

const NAME = "imagefleet.made";
const MOST = 48;

export function madeJobs() {
  try {
    const ids = JSON.parse(localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(ids) ? ids.filter((id) => typeof id === "string") : [];
  } catch {
    return [];
  }
}

export function remember(ids) {
  const kept = [...ids, ...madeJobs().filter((id) => !ids.includes(id))].slice(0, MOST);
  localStorage.setItem(NAME, JSON.stringify(kept));
  return kept;
}

export function forget(id) {
  const kept = madeJobs().filter((each) => each !== id);
  localStorage.setItem(NAME, JSON.stringify(kept));
  return kept;
}
