// The image that the next jobs start from, kept while the page is open.

let start = null;
const listeners = new Set();

export function startImage() {
  return start;
}

export function onStart(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Take a file, or the address of an image of this gateway. */
export async function setStart(source) {
  const blob = typeof source === "string" ? await (await fetch(source)).blob() : source;
  start = blob === null ? null : await createImageBitmap(blob);
  for (const listener of listeners) listener(start);
}

/** Draw the image over a canvas, cut in the middle to its sides. */
export function drawCovering(canvas, image) {
  const scale = Math.max(canvas.width / image.width, canvas.height / image.height);
  const width = image.width * scale;
  const height = image.height * scale;
  canvas.getContext("2d").drawImage(image, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
}
