// Searches pending timers, a part at a time.
//
// The API selects by the instant at which a timer leaves the wheel. That is its due time, but for
// timers beyond the roll window, which leave earlier, to be written to their topic again. A search by
// due time so has two passes: timers that leave in the range, then the rolled ones before it, of
// which the page keeps those that are due in the range.

import { count } from "./format.js";
import { fleetTimers, timers } from "./operations.js";

const SHOWN = 100;
const SCANNED = 1000; // of a request in the second pass
const REQUESTS_MAX = 5; // of one part; a search by key may return none in many requests

/** See the module's head. */
export class TimerSearch {
  /**
   * @param {object} filter topic, tag, id, key, key_base64 as for the API
   * @param {?{from: number, to: number}} due the range of due times
   * @param {{rolls: number, precisionMs: number}} wheel how many timers roll, the length of a slot
   * @param {boolean} isQuiet whether the page searches by itself: it asks for no token then
   */
  constructor(filter, due, wheel, isQuiet) {
    Object.assign(this, { filter, due, isQuiet, page: null, scanned: 0 });
    Object.assign(this, { shard: 0, shards: 1, unread: [] });
    this.leaving = leavingIn(filter, due, wheel.precisionMs);
    this.passes = due !== null && wheel.rolls > 0 ? ["leaving", "rolled"] : ["leaving"];
  }

  /** Whether there may be more. */
  get isOpen() {
    return this.passes.length > 0;
  }

  get #isScanning() {
    return this.passes[0] === "rolled";
  }

  get moreLabel() {
    return this.#isScanning ? "Search on among rolled timers" : "More";
  }

  get says() {
    const scan = ` ${count(this.scanned)} were looked through; timers beyond the roll window are listed by a scan.`;
    const only = this.where && ` Only those${this.where}.`;
    return only + unreadIn(this.unread) + (this.#isScanning ? scan : "");
  }

  /** Where the timers are, for sentences. */
  get where() {
    return this.shards > 1 ? ` in shard ${this.shard} of ${this.shards}` : "";
  }

  /** Returns the next timers; maybe none, while `isOpen`. */
  async more() {
    const found = [];
    for (let i = 0; this.isOpen && i < REQUESTS_MAX && found.length < SHOWN; i += 1) {
      const isScan = this.#isScanning;
      const wanted = isScan ? { ...this.filter, to: this.due.from } : this.leaving;
      const part = await timers(wanted, isScan ? SCANNED : SHOWN, this.page, this.isQuiet);
      const { shard, shards, recovering } = part;
      Object.assign(this, { shard, shards, unread: recovering ? [shard] : this.unread });
      this.scanned += part.timers.length;
      found.push(...part.timers.filter((timer) => this.#isDue(timer, isScan)));
      this.page = part.next;
      if (part.next === null) {
        this.passes.shift();
      }
    }
    return found;
  }

  #isDue(timer, isScan) {
    if (this.due === null || !timer.rolled) {
      return !isScan;
    }
    return timer.due_ms >= this.due.from && timer.due_ms < this.due.to;
  }
}

/** The same in all shards at once: one part, by the instant at which a timer leaves the wheel. */
export class FleetSearch {
  isOpen = false;

  constructor(filter, due, wheel, isQuiet) {
    Object.assign(this, { wanted: leavingIn(filter, due, wheel.precisionMs), due, isQuiet });
  }

  get says() {
    const { more, absent } = this.found;
    const others = more ? " Others may match: narrow the search." : "";
    const rolls = this.due ? " A timer that rolls is found by when it leaves the wheel." : "";
    const away = absent.map(({ shard, reason }) => ` Shard ${shard} is not searched: ${reason}.`);
    return others + rolls + away.join("") + unreadIn(this.unread);
  }

  get where() {
    const { shards, absent } = this.found;
    return ` in ${absent.length ? `${shards - absent.length} of ` : ""}${shards} shards`;
  }

  async more() {
    this.found = await fleetTimers(this.wanted, SHOWN, this.isQuiet);
    this.unread = this.found.recovering;
    return this.found.timers;
  }
}

/** A sentence about each shard that recovers. */
export function unreadIn(shards) {
  const text = "still reads its timer topics again: others may be pending";
  return shards.map((shard) => ` Shard ${shard} ${text}.`).join("");
}

/**
 * The filter of timers that leave in a range: of the first pass, and of a bulk cancel.
 *
 * A slot ends with its instant: that of a timer due at 9:00:00 is the last before 9:00. People look
 * for such a timer after 9:00, so a range has the slots that end in it, without its own end.
 */
export function leavingIn(filter, due, precisionMs) {
  if (due === null) {
    return filter;
  }
  const { from, to } = due;
  return { ...filter, from: String(from), to: String(Math.max(from, to - precisionMs)) };
}
