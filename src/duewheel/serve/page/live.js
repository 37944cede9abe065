// The strip of numbers on top: pending timers, their rates, their lateness.

import { el } from "./dom.js";
import { bytes, count, counted, delay, duration, or, rate } from "./format.js";
import { quantiles, Samples } from "./samples.js";

const RATE_MS = 10_000;
const LATENESS_MS = 60_000;
const SVG = "http://www.w3.org/2000/svg";

// In the order in which they are shown: name, and explanation.
const TILES = {
  pending: [
    "Pending",
    "Timers in the wheel. A cancelled one counts until it would have left: it is dropped then",
  ],
  accepted: ["Accepted", "Timers that ingest has taken into the wheel, over 10 s"],
  delivered: [
    "Delivered",
    "Timers that have left the wheel, over 10 s; the line: five minutes at most",
  ],
  late: [
    "Lateness",
    "Acknowledgement minus due time, upper bounds of half and of 99 % of the last minute's timers",
  ],
  behind: [
    "Behind",
    "Now minus the end of the last slot that is delivered in full. Dequeue reports it twice a second: less than a second is the age of its report, and no delay",
  ],
  lag: [
    "Ingest lag",
    "Messages in the timer topics that are not in the wheel, and the age of the oldest",
  ],
  letters: [
    "New dead letters",
    "Written since dequeue began; the view has all, and which of them are not replayed",
  ],
  disk: ["Disk", "Free bytes of the file system of the data directory"],
};

/** A number with its name and its explanation. */
class Tile {
  constructor(tiles, name, explained) {
    this.value = el("dd.value", "–");
    this.detail = el("dd.muted");
    this.element = el("dl.tile", { title: explained }, el("dt", name), this.value, this.detail);
    this.line = null;
    tiles.append(this.element);
  }

  show(value, detail = "", kind = "") {
    this.value.textContent = value ?? "–";
    this.detail.textContent = detail;
    this.value.className = `value ${kind}`;
  }

  /** Draws a line of values, oldest first. */
  draw(values) {
    this.line ??= this.#addLine();
    const highest = Math.max(...values, 1e-9);
    const step = 100 / Math.max(1, values.length - 1);
    const points = values.map(
      (value, i) => `${(i * step).toFixed(1)},${(19 - (18 * value) / highest).toFixed(1)}`,
    );
    this.line.setAttribute("points", points.join(" "));
  }

  #addLine() {
    const svg = document.createElementNS(SVG, "svg");
    const attributes = {
      viewBox: "0 0 100 20",
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    };
    Object.entries(attributes).forEach(([name, value]) => svg.setAttribute(name, value));
    this.element.append(svg);
    return svg.appendChild(document.createElementNS(SVG, "polyline"));
  }
}

/** See the module's head. */
export class Live {
  constructor(strip) {
    const shown = el("div.tiles");
    const made = Object.entries(TILES).map(([name, texts]) => [name, new Tile(shown, ...texts)]);
    this.tiles = Object.fromEntries(made);
    strip.append(shown);
    this.placed = new Samples();
    this.out = new Samples();
    this.lateness = new Samples();
  }

  showStatus({ role, pending, delivered, dequeue, ingest, disk, ...status }, at) {
    const { not_ready: reasons, conditions } = status;
    const { tiles } = this;
    const counts = role === "standby" ? "of the owner" : "cancelled ones included";
    tiles.pending.show(or(pending, count, null), or(pending, () => counts, "in a recovery"));
    if (pending !== null) {
      this.placed.add(at, pending + delivered);
    }
    this.out.add(at, delivered);
    showRate(tiles.accepted, this.placed);
    showRate(tiles.delivered, this.out);
    const { behind_ms: behind, dead_letters: letters, dead_letters_wait: wait } = dequeue;
    tiles.behind.show(
      or(behind, delay, null),
      or(behind, () => "", `dequeue is ${dequeue.state}`),
      "dequeue_behind" in reasons ? "bad" : "",
    );
    const { lag, lag_ms: age } = ingest;
    const waiting = (n) => (n ? `oldest ${duration(age)}` : "nothing waits");
    tiles.lag.show(
      or(lag, count, null),
      or(lag, waiting, "Kafka was not asked yet"),
      "ingest_lag" in reasons ? "bad" : "",
    );
    const since = wait ? "wait for their topic" : "since dequeue began";
    tiles.letters.show(or(letters, count, null), since, letters ? "warn" : "");
    const { free_bytes: free, min_free_bytes: least } = disk;
    const full = conditions.find(({ name }) => name === "disk_full" || name === "disk");
    tiles.disk.show(bytes(free), `free; ingest stops at ${bytes(least)}`, full?.kind);
  }

  /** @param {object} found of /v1/lateness */
  showLateness({ available, reason, bounds_s: bounds, counts }, at) {
    const { late } = this.tiles;
    if (!available) {
      late.show(null, reason);
      return;
    }
    this.lateness.add(at, counts.at(-1), counts);
    const span = this.lateness.over(LATENESS_MS);
    const total = span[1].total - span[0].total;
    if (total === 0) {
      late.show(null, "no delivery in the last minute");
      return;
    }
    const [half, most] = quantiles(span, bounds, [0.5, 0.99]).map((s) =>
      s === null ? `> ${duration(bounds.at(-1) * 1000)}` : `≤ ${duration(s * 1000)}`,
    );
    late.show(most, `p99; p50 ${half}; ${counted(total, "timer")}`);
  }

  failLateness({ message }) {
    this.tiles.late.show(null, message);
  }
}

function showRate(tile, samples) {
  tile.show(or(samples.rate(RATE_MS), rate, null), "per second");
  tile.draw(samples.rates());
}
