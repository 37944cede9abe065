// The strip of numbers on top: what is pending, how fast it comes and leaves, how late it is.

import { el } from "./dom.js";
import { behind, bytes, count, counted, duration, rate } from "./format.js";
import { HistogramSamples, Samples } from "./samples.js";

const RATE_MS = 10_000;
const LATENESS_MS = 60_000;
const SVG = "http://www.w3.org/2000/svg";

/** A number with its name, and what explains it. */
class Tile {
  constructor(tiles, name, explained) {
    this.value = el("dd", { class: "value" }, "–");
    this.detail = el("dd", { class: "muted" }, "");
    this.element = el(
      "dl",
      { class: "tile", title: explained },
      el("dt", {}, name),
      this.value,
      this.detail,
    );
    this.line = null;
    tiles.append(this.element);
  }

  show(value, detail = "", kind = "") {
    this.value.textContent = value;
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
    const line = document.createElementNS(SVG, "polyline");
    svg.setAttribute("viewBox", "0 0 100 20");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(line);
    this.element.append(svg);
    return line;
  }
}

/** See the module's head. */
export class Live {
  constructor(strip) {
    const tiles = el("div", { class: "tiles" });
    const tile = (name, explained) => new Tile(tiles, name, explained);
    strip.append(tiles);
    this.pending = tile(
      "Pending",
      "Timers in the wheel. A cancelled one counts until it would have left: it is dropped then",
    );
    this.accepted = tile("Accepted", "Timers that ingest has taken into the wheel, over 10 s");
    this.delivered = tile(
      "Delivered",
      "Timers that have left the wheel, over 10 s; the line: five minutes at most",
    );
    this.late = tile(
      "Lateness",
      "Acknowledgement minus due time, upper bounds of half and of 99 % of the last minute's timers",
    );
    this.behind = tile(
      "Behind",
      "Now minus the end of the last slot that is delivered in full. Dequeue reports it twice a second: less than a second is the age of its report, and no delay",
    );
    this.lag = tile(
      "Ingest lag",
      "Messages in the timer topics that are not in the wheel, and the age of the oldest",
    );
    this.letters = tile(
      "New dead letters",
      "Written since dequeue began; the view has all, and which of them wait for a replay",
    );
    this.disk = tile("Disk", "Free bytes of the file system of the data directory");
    this.placed = new Samples();
    this.out = new Samples();
    this.lateness = new HistogramSamples();
  }

  showStatus(status, at) {
    this.placed.add(at, status.pending + status.delivered);
    this.out.add(at, status.delivered);
    const counts = status.role === "standby" ? "of the owner" : "cancelled ones included";
    this.pending.show(count(status.pending), counts);
    this.#rate(this.accepted, this.placed);
    this.#rate(this.delivered, this.out);
    this.#showDelays(status);
    const { dead_letters: letters, dead_letters_wait: wait } = status.dequeue;
    this.letters.show(
      letters === null ? "–" : count(letters),
      wait ? "wait for their topic" : "since dequeue began",
      letters ? "warn" : "",
    );
    const { free_bytes: free, min_free_bytes: least } = status.disk;
    this.disk.show(
      bytes(free),
      `free; ingest stops at ${bytes(least)}`,
      free < 2 * least ? "bad" : "",
    );
  }

  #rate(tile, samples) {
    const perSecond = samples.rate(RATE_MS);
    tile.show(perSecond === null ? "–" : rate(perSecond), "per second");
    tile.draw(samples.rates());
  }

  #showDelays({ dequeue, ingest, bounds }) {
    const behindMs = dequeue.behind_ms;
    const isBehind = behindMs > bounds.ready_behind_ms.value;
    this.behind.show(
      behindMs === null ? "–" : behind(behindMs),
      behindMs === null ? `dequeue is ${dequeue.state}` : "",
      isBehind ? "bad" : "",
    );
    if (ingest.lag === null) {
      this.lag.show("–", "Kafka was not asked yet");
    } else {
      const isLate = ingest.lag_ms > bounds.ready_lag_ms.value;
      this.lag.show(
        count(ingest.lag),
        ingest.lag ? `oldest ${duration(ingest.lag_ms)}` : "nothing waits",
        isLate ? "bad" : "",
      );
    }
  }

  /** @param {object} found of /v1/lateness */
  showLateness(found, at) {
    if (!found.available) {
      this.late.show("–", found.reason);
      return;
    }
    this.lateness.add(at, found.bounds_s, found.counts);
    const {
      values: [half, most],
      total,
    } = this.lateness.quantiles(LATENESS_MS, [0.5, 0.99]);
    if (total === 0) {
      this.late.show("–", "no delivery in the last minute");
      return;
    }
    const bound = (s) =>
      s === null ? `> ${duration(found.bounds_s.at(-1) * 1000)}` : `≤ ${duration(s * 1000)}`;
    this.late.show(bound(most), `p99; p50 ${bound(half)}; ${counted(total, "timer")}`);
  }

  /** Nothing can be read: the numbers stay, and are marked as old. */
  latenessUnknown(error) {
    this.late.show("–", error.message);
  }
}
