// Searches pending timers, a part at a time.
//
// The API selects by the instant at which a timer leaves the wheel. That is its due time, but for
// timers beyond the roll window, which leave earlier, to be written to their topic again. A search by
// due time so has two passes: timers that leave in the range, then the rolled ones before it, of
// which the page keeps those that are due in the range.

import { timers } from "./operations.js";

const SHOWN = 100;
const SCANNED = 1000; // of a request in the second pass
const REQUESTS_MAX = 5; // of one part; a search by key may return none in many requests

/** See the module's head. */
export class Search {
  /**
   * @param {object} filter topic, id, key, key_base64 as for the API
   * @param {?{from: number, to: number}} due the range of due times
   * @param {{rolls: number, precisionMs: number}} wheel how many timers roll, the length of a slot
   * @param {boolean} background whether the page searches by itself: it asks for no token then
   */
  constructor(filter, due, wheel, background) {
    this.filter = filter;
    this.background = background;
    this.due = due;
    this.precisionMs = wheel.precisionMs;
    this.passes = due !== null && wheel.rolls > 0 ? ["leaving", "rolled"] : ["leaving"];
    this.page = null;
    this.scanned = 0;
  }

  /** Whether there may be more. */
  get isOpen() {
    return this.passes.length > 0;
  }

  /** Whether what is scanned now are timers that leave before the range. */
  get isScanning() {
    return this.passes[0] === "rolled";
  }

  /** Returns the next timers; maybe none, while `isOpen`. */
  async more() {
    const found = [];
    for (
      let requests = 0;
      this.isOpen && requests < REQUESTS_MAX && found.length < SHOWN;
      requests += 1
    ) {
      const rolled = this.isScanning;
      const part = await timers(
        this.#wanted(rolled),
        rolled ? SCANNED : SHOWN,
        this.page,
        this.background,
      );
      this.scanned += part.timers.length;
      found.push(...part.timers.filter((timer) => this.#isDue(timer, rolled)));
      this.page = part.next;
      if (part.next === null) {
        this.passes.shift();
      }
    }
    return found;
  }

  #wanted(rolled) {
    if (this.due === null) {
      return this.filter;
    }
    return rolled
      ? { ...this.filter, to: this.due.from }
      : { ...this.filter, ...slotsOf(this.due, this.precisionMs) };
  }

  #isDue(timer, rolled) {
    if (this.due === null || !timer.rolled) {
      return !rolled;
    }
    return timer.due_ms >= this.due.from && timer.due_ms < this.due.to;
  }
}

/** The filter of a bulk cancel, which selects as the first pass does. */
export function bulkFilter(filter, due, precisionMs) {
  const range = due === null ? {} : slotsOf(due, precisionMs);
  return { ...filter, ...range };
}

// A slot ends with its instant: that of a timer due at 9:00:00 is the last before 9:00. People look
// for such a timer behind 9:00, so a range has the slots that end in it, without its own end.
function slotsOf({ from, to }, precisionMs) {
  return { from: String(from), to: String(Math.max(from, to - precisionMs)) };
}
