// The functions that all parts of the page are written with.
import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

export { render } from "../vendor/preact.js";
export { useCallback, useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";

export const html = htm.bind(h);
