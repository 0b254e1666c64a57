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

export function remember(id) {
  keep([id, ...madeJobs().filter((each) => each !== id)].slice(0, MOST));
}

export function forget(id) {
  keep(madeJobs().filter((each) => each !== id));
}

function keep(ids) {
  localStorage.setItem(NAME, JSON.stringify(ids));
}
