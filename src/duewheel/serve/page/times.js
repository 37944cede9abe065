// <time> elements whose relative part stays true while they are shown.

import { el } from "./dom.js";
import { full, instant, iso, now, relative } from "./format.js";

/** An instant and how far it is. */
export function moment(ms) {
  return el("span", { class: "moment" }, clock(ms), " ", distance(ms));
}

/** An instant alone. */
export function clock(ms) {
  return el("time", { datetime: iso(ms), title: full(ms) }, instant(ms));
}

function distance(ms) {
  return el("span", { class: "muted relative", "data-ms": ms }, relative(ms));
}

/** Writes all relative times again. Near ones each second, others seldom change: only then is the
 * page touched. */
export function refreshTimes() {
  for (const element of document.querySelectorAll(".relative[data-ms]")) {
    const ms = Number(element.dataset.ms);
    const text = relative(ms);
    if (element.textContent !== text) {
      element.textContent = text;
    }
    element.classList.toggle("past", ms < now());
  }
}
