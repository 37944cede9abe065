// Repeats a read while the page is visible.
//
// The next read comes `everyMs` after the one before, and no sooner than nine times as long as that
// took: a count of millions must not keep a thread of the API busy for the sake of a page. After
// failures it comes later, up to RETRY_MAX_MS.

import { Problem } from "./api.js";

const SHARE = 9;
const RETRY_MAX_MS = 15_000;

/**
 * @param {number} everyMs the shortest time between two reads
 * @param {object} what `read` returns a promise; `show` and `fail`, if any, get its result or error;
 *   `isWanted`: whether the result is on the screen
 * @returns {function(): void} reads at once
 */
export function poll(everyMs, what) {
  let timer = null;
  let busy = false;
  let again = false;
  let failures = 0;

  async function run() {
    clearTimeout(timer);
    if (busy) {
      again = true;
      return;
    }
    if (document.hidden) {
      return; // a change of visibility calls
    }
    if (what.isWanted === false) {
      timer = setTimeout(run, everyMs);
      return;
    }
    busy = true;
    const beginMs = performance.now();
    try {
      const found = await what.read();
      what.show?.(found);
      failures = 0;
    } catch (error) {
      failures += 1;
      if (!(error instanceof Problem)) {
        console.error(error); // a fault of the page
      }
      what.fail?.(error);
    }
    busy = false;
    const pauseMs = Math.max(
      everyMs * 2 ** Math.min(failures, 4),
      SHARE * (performance.now() - beginMs),
    );
    timer = setTimeout(run, again ? 0 : failures ? Math.min(pauseMs, RETRY_MAX_MS) : pauseMs);
    again = false;
  }

  document.addEventListener("visibilitychange", run);
  run();
  return run;
}
