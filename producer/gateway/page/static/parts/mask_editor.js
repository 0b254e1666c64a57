// The start image, cut to the size of the job, and a mask that is painted over it.

import { html, useEffect, useRef, useState } from "../lib/view.js";
import { drawCovering } from "./start_image.js";

const CURSOR_STEP = 8;
const SHOWN = "rgb(255 64 129)";

/** `tools.current` gets the functions that return both images as data URLs. */
export function MaskEditor({ image, width, height, tools, onRemove }) {
  const picture = useRef(null);
  const mask = useRef(null);
  const [brush, setBrush] = useState(Math.round(Math.min(width, height) / 8));
  const [erasing, setErasing] = useState(false);
  const [cursor, setCursor] = useState({ x: width / 2, y: height / 2 });
  const [painted, setPainted] = useState(false);
  useEffect(() => drawCovering(picture.current, image), [image, width, height]);
  tools.current = {
    picture: () => picture.current.toDataURL("image/png"),
    mask: () => (hasPaint(mask.current) ? maskUrl(mask.current) : null),
  };
  const paint = ({ x, y }) => {
    const context = mask.current.getContext("2d");
    context.globalCompositeOperation = erasing ? "destination-out" : "source-over";
    context.fillStyle = SHOWN;
    context.beginPath();
    context.arc(x, y, brush / 2, 0, 2 * Math.PI);
    context.fill();
  };
  const look = () => setPainted(hasPaint(mask.current));
  const fill = (all) => {
    const context = mask.current.getContext("2d");
    context.globalCompositeOperation = "source-over";
    context.clearRect(0, 0, width, height);
    context.fillStyle = SHOWN;
    if (all) context.fillRect(0, 0, width, height);
    look();
  };
  const place = (event) => {
    const box = mask.current.getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * width, y: ((event.clientY - box.top) / box.height) * height };
  };
  const drag = (event) => {
    if (event.type === "pointerdown") mask.current.setPointerCapture(event.pointerId);
    if (event.buttons) paint(place(event));
    setCursor(place(event));
  };
  const onKey = (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (by) setCursor({ x: clip(cursor.x + CURSOR_STEP * by[0], width), y: clip(cursor.y + CURSOR_STEP * by[1], height) });
    else if (event.key === " ") (paint(cursor), look());
    else if (event.key.toLowerCase() === "e") setErasing(!erasing);
    else return;
    event.preventDefault();
  };
  return html`
    <div class="start">
      <div class="layers" style=${{ aspectRatio: `${width} / ${height}` }}>
        <canvas ref=${picture} width=${width} height=${height} aria-hidden="true"></canvas>
        <canvas ref=${mask} class="mask" width=${width} height=${height} tabindex="0" role="application"
          aria-label="Mask. Arrows move the brush, space paints, E changes between brush and eraser."
          onPointerDown=${drag} onPointerMove=${drag} onPointerUp=${look} onPointerCancel=${look} onKeyDown=${onKey}></canvas>
        <span class="cursor" aria-hidden="true" style=${cursorStyle(cursor, brush, width, height)}></span>
      </div>
      <p class="note">${painted ? "Only what is painted is made anew." : "Paint what should be made anew, or leave it: then the whole image is a start."}</p>
      <div class="tools">
        <label>Brush <input type="range" min="4" max=${Math.min(width, height)} value=${brush} onInput=${(event) => setBrush(Number(event.target.value))} /></label>
        <button type="button" class="quiet" aria-pressed=${erasing} onClick=${() => setErasing(!erasing)}>Eraser</button>
        <button type="button" class="quiet" onClick=${() => fill(true)}>All</button>
        <button type="button" class="quiet" onClick=${() => fill(false)}>Nothing</button>
        <button type="button" class="quiet" onClick=${onRemove}>Remove image</button>
      </div>
    </div>
  `;
}

function clip(value, limit) {
  return Math.max(0, Math.min(limit, value));
}

function cursorStyle({ x, y }, brush, width, height) {
  return {
    left: `${(100 * x) / width}%`,
    top: `${(100 * y) / height}%`,
    width: `${(100 * brush) / width}%`,
    height: `${(100 * brush) / height}%`,
  };
}

function hasPaint(canvas) {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 3; at < data.length; at += 4) if (data[at] > 127) return true;
  return false;
}

/** The mask as the fleet reads it: white is made anew, black is kept. */
function maskUrl(canvas) {
  const whole = document.createElement("canvas");
  whole.width = canvas.width;
  whole.height = canvas.height;
  const context = whole.getContext("2d");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < pixels.data.length; at += 4) {
    pixels.data.fill(pixels.data[at + 3] > 127 ? 255 : 0, at, at + 3);
    pixels.data[at + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return whole.toDataURL("image/png");
}
