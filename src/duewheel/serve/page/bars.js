// A histogram of buttons. One of them is in the tab order; arrows, Home and End move between them.

import { el } from "./dom.js";
import { count, counted } from "./format.js";

/**
 * @typedef {object} Bar
 * @property {number} from its begin, epoch ms
 * @property {number} to its end
 * @property {number} count
 * @property {string} label of its time, for people who do not see where it stands
 * @property {?string} tick the label below it, if there is to be one
 */

/** Shows bars in place of those before; keeps the focus. */
export class Bars {
  /**
   * @param {string} name for screen readers
   * @param {function(Bar, boolean): void} choose called with a bar, and whether Shift was held
   */
  constructor(name, choose) {
    this.bars = [];
    this.choose = choose;
    this.current = 0;
    this.plot = el("div.plot", {
      role: "group",
      "aria-label": name,
      onkeydown: (event) => this.#key(event),
    });
    this.ticks = el("div.ticks", { "aria-hidden": "true" });
    this.scale = el("div.scale", { "aria-hidden": "true" }, el("span"), el("span"));
    this.element = el("div.bars", this.scale, this.plot, this.ticks);
  }

  /**
   * @param {Bar[]} bars
   * @param {{from: number, to: number}|null} chosen the range that is marked
   * @param {boolean} logarithmic
   */
  show(bars, chosen, logarithmic) {
    const highest = Math.max(1, ...bars.map((bar) => bar.count));
    this.bars = bars;
    this.current = Math.min(this.current, bars.length - 1);
    this.scale.firstChild.textContent = count(highest);
    this.scale.lastChild.textContent = "0";
    this.#resize(bars.length);
    bars.forEach((bar, i) =>
      this.#update(this.plot.children[i], bar, i, height(bar.count, highest, logarithmic), chosen),
    );
    this.ticks.replaceChildren(
      ...bars.flatMap((bar, i) => (bar.tick ? [tick(bar, i, bars.length)] : [])),
    );
  }

  #resize(wanted) {
    while (this.plot.children.length > wanted) {
      this.plot.lastChild.remove();
    }
    while (this.plot.children.length < wanted) {
      const i = this.plot.children.length;
      const onclick = (event) => {
        this.current = i;
        this.choose(this.bars[i], event.shiftKey);
      };
      this.plot.append(el("button.bar", { type: "button", onclick }, el("span.fill")));
    }
  }

  #update(element, bar, i, share, chosen) {
    const isChosen = chosen !== null && bar.from < chosen.to && bar.to > chosen.from;
    element.title = element.ariaLabel = `${bar.label}: ${counted(bar.count, "timer")}`;
    element.ariaPressed = String(isChosen);
    element.tabIndex = i === this.current ? 0 : -1;
    element.firstChild.style.setProperty("height", `${share * 100}%`);
    element.classList.toggle("empty", bar.count === 0);
  }

  #key(event) {
    const last = this.bars.length - 1;
    const to = {
      ArrowLeft: this.current - 1,
      ArrowRight: this.current + 1,
      PageUp: this.current - 10,
      PageDown: this.current + 10,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined) {
      return;
    }
    event.preventDefault();
    const { children } = this.plot;
    children[this.current].tabIndex = -1;
    this.current = Math.max(0, Math.min(last, to));
    children[this.current].tabIndex = 0;
    children[this.current].focus();
  }
}

function height(n, highest, logarithmic) {
  if (n === 0) {
    return 0;
  }
  // One timer beside a million is still seen.
  return Math.max(0.015, logarithmic ? Math.log(n + 1) / Math.log(highest + 1) : n / highest);
}

function tick(bar, i, bars) {
  const edge = i / bars > 0.9 ? "last" : "";
  return el("span", { class: `tick ${edge}`, style: { left: `${(i / bars) * 100}%` } }, bar.tick);
}
