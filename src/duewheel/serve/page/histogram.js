// The histogram: everything pending by due time. A bar selects its timers, which the list below shows.

import { Bars } from "./bars.js";
import { announce, button, check, el, head, labelOf, note, table } from "./dom.js";
import { count, counted, instant, noteClock } from "./format.js";
import { histogram } from "./operations.js";
import { barsOf, between, NAMED, named, span } from "./ranges.js";
import { change, route } from "./route.js";

const PRECISION_MS = 50; // until the API has said it

/** See the module's head. */
export class Histogram {
  /** @param {function(): number} longestDelay in ms */
  constructor(section, longestDelay) {
    this.longestDelay = longestDelay;
    this.last = null;
    this.precisionMs = PRECISION_MS;
    this.bars = new Bars(
      "Pending timers by due time; arrow keys move, Return selects",
      (bar, more) => this.#choose(bar, more),
    );
    this.caption = el("p.caption", "Loading");
    this.problem = el("div", { "aria-live": "polite" });
    this.zoomIn = button("Zoom in", () => this.#zoom());
    this.zoomOut = button("Zoom out", () => change({ zoom: null }));
    this.clear = button("Clear the selection", () => change({ from: null, to: null }));
    this.log = el("input", { type: "checkbox", onchange: () => this.#draw() });
    this.table = el(
      "details",
      { ontoggle: () => this.#drawTable() },
      el("summary", "As a table"),
      el("div"),
    );
    this.radios = NAMED.map(({ name }) => {
      const choose = () => change({ range: name, zoom: null });
      return el("input", { type: "radio", name: "range", value: name, onchange: choose });
    });
    const ranges = NAMED.flatMap(({ label }, i) => [
      this.radios[i],
      labelOf(this.radios[i], label),
    ]);
    section.append(
      head(
        "h1",
        "Pending by due time",
        el("fieldset.segments", el("legend.unseen", "Range"), ranges),
      ),
      this.caption,
      this.problem,
      this.bars.element,
      el(
        "div.row",
        this.zoomIn,
        this.zoomOut,
        this.clear,
        check("Logarithmic", this.log),
        this.table,
      ),
    );
  }

  /** Whether it is on the screen. */
  get isWanted() {
    return route().view === "pending";
  }

  /** Reads the counts of the range that the address names. */
  async read() {
    const { zoom, range } = route().parameters;
    const [from, to] = (zoom ?? "").split("-").map(Number);
    const wanted =
      to > from ? between(from, to, this.precisionMs) : named(range ?? "hour", this.longestDelay());
    // One ms earlier: a timer that is due at 9:00:00 counts after 9:00 (timer_search.js has why).
    const begin = wanted.from - 1;
    return {
      wanted,
      found: await histogram(begin, begin + wanted.width * wanted.bars, wanted.bars),
    };
  }

  /** Shows the result of `read`. */
  show({ wanted, found }) {
    noteClock(found.now_ms);
    this.precisionMs = found.precision_ms;
    this.last = { wanted, found };
    this.problem.replaceChildren();
    this.bars.element.classList.remove("stale");
    this.#draw();
  }

  /** Keeps the bars, and says that they are old. */
  fail({ message }) {
    const { last } = this;
    const old = last && `These counts are of ${instant(last.found.now_ms)}: ${message}.`;
    this.bars.element.classList.toggle("stale", last !== null);
    this.caption.textContent = last === null ? "" : this.caption.textContent;
    this.problem.replaceChildren(note(old ?? `The histogram cannot be read: ${message}.`, "bad"));
  }

  /** How many of all pending timers roll, as last read. */
  get rolls() {
    return this.last?.found.rolls ?? 0;
  }

  /** The address has changed: marks the selection at once, before the next read. */
  routed() {
    this.#draw();
  }

  #draw() {
    const { range = "hour", zoom } = route().parameters;
    this.radios.forEach((radio) => {
      radio.checked = !zoom && radio.value === range;
    });
    this.zoomOut.hidden = !zoom;
    const chosen = selection();
    this.clear.hidden = chosen === null;
    this.zoomIn.hidden = chosen === null || chosen.to - chosen.from <= this.precisionMs;
    if (this.last === null) {
      return;
    }
    const { wanted, found } = this.last;
    const bars = barsOf(wanted, found.ranges[0].counts);
    this.bars.show(bars, chosen, this.log.checked);
    this.caption.textContent = this.#captionOf(bars, found);
    this.#drawTable();
  }

  #captionOf(bars, found) {
    const shown = bars.reduce((sum, bar) => sum + bar.count, 0);
    const begin = bars[0].from;
    const parts = [
      found.pending === 0
        ? "Nothing is pending."
        : `${counted(shown, "timer")} of ${count(found.pending)} due ${span(begin, bars.at(-1).to)}.`,
      found.overdue > 0 ? `${count(found.overdue)} overdue.` : "",
      found.estimated
        ? `Due times of ${counted(found.rolls, "timer")} beyond the roll window are estimated from a sample.`
        : "",
    ];
    return parts.filter(Boolean).join(" ");
  }

  #drawTable() {
    if (!this.table.open || this.last === null) {
      return;
    }
    const bars = this.bars.bars.filter((bar) => bar.count > 0);
    const rows = bars.map((bar) => {
      const select = () => this.#choose(bar, false);
      const name = { "aria-label": `Select ${bar.label}` };
      return [bar.label, count(bar.count), button("Select", select, name)];
    });
    const holder = this.table.lastChild;
    if (holder.contains(document.activeElement)) {
      return; // a button that is replaced loses the focus
    }
    const shown = table("Pending timers by due time", ["Due", "#Timers", "List"], rows);
    holder.replaceChildren(rows.length ? shown : note("No timer is due in this range."));
  }

  #choose(bar, more) {
    const before = selection();
    if (before && !more && before.from === bar.from && before.to === bar.to) {
      change({ from: null, to: null });
      return;
    }
    const from = more && before ? Math.min(before.from, bar.from) : bar.from;
    const to = more && before ? Math.max(before.to, bar.to) : bar.to;
    change({ from, to });
    announce(`Selected ${span(from, to)}`);
  }

  #zoom() {
    const chosen = selection();
    change({ zoom: `${chosen.from}-${chosen.to}` });
    this.zoomOut.hidden = false;
    this.zoomOut.focus();
  }
}

const END = Date.UTC(2200); // of a range without an end

/** The selected range of due times, null without one. */
export function selection() {
  const { from, to } = route().parameters;
  const range = { from: Number(from ?? 1), to: Number(to ?? END) };
  return (from || to) && range.to > range.from ? range : null;
}
