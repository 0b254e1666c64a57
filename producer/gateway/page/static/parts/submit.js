// Order jobs.

import { api } from "../lib/api.js";
import { remember } from "./made_jobs.js";

/** Order one job and return its id. Throws ApiError. */
export async function order(input) {
  const given = Object.entries({ ...input, preview: true }).filter(([, value]) => value !== "" && value != null);
  const prediction = await api("v1/predictions", {
    method: "POST",
    body: { input: Object.fromEntries(given) },
  });
  remember(prediction.id);
  return prediction.id;
}

export function randomSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}
