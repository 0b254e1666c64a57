// Load something now, again when it may have changed, and tell what went wrong.

import { useEffect, useRef, useState } from "./view.js";

/**
 * Return the value, the problem of the last try, and a function that loads it again.
 *
 * `load` is called at once and when one of `inputs` changes. `pause(value)` is the number of
 * milliseconds after which the value is loaded again, while the page is seen; null: it does not
 * change any more.
 */
export function useRefreshed(load, { inputs = [], pause = () => null, onError }) {
  const [value, setValue] = useState(null);
  const [problem, setProblem] = useState(null);
  const [tries, setTries] = useState(0);
  const latest = useRef(0); // An answer to an earlier question comes too late.
  const refresh = async () => {
    latest.current += 1;
    const number = latest.current;
    try {
      const loaded = await load();
      if (number !== latest.current) return;
      setValue(loaded);
      setProblem(null);
    } catch (error) {
      if (number !== latest.current) return;
      setProblem(error);
      onError(error);
    }
    setTries(number);
  };
  useEffect(() => void refresh(), inputs);
  useEffect(() => {
    const ms = value === null ? null : pause(value);
    if (ms === null) return undefined;
    const timer = setInterval(() => !document.hidden && refresh(), ms);
    return () => clearInterval(timer);
  }, [tries]);
  return { value, setValue, problem, setProblem, refresh };
}
