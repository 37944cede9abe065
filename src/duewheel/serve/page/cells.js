// Values that several views show: texts of producers, instants, the parts of a timer.

import { el } from "./dom.js";
import { bytes, full, instant, iso, relative } from "./format.js";

export const muted = (text) => el("span.muted", text);
export const tag = (text, kind = "", title = null) =>
  el("span", { class: `tag ${kind}`, title }, text);

/** Text that a producer wrote, or a name of Kafka's. In <bdi> its direction is its own alone. */
export const code = (text) => (text === "" ? muted("empty") : el("bdi.code", text));

/** The key of a timer or dead letter. */
export function keyOf({ key, key_base64: encoded = null, key_bytes: size = null }) {
  const rest = size === null ? "" : muted(` … of ${bytes(size)}`);
  if (encoded !== null) {
    return el("span", code(encoded), " ", muted("base64"), rest);
  }
  return key === null ? muted("none") : el("span", code(key), rest);
}

/** The size of the value of a timer or dead letter. */
export const sizeOf = ({ value_bytes: size }) => (size === null ? "null" : bytes(size));

/** The due time of a timer, by `show`; a dead letter leaves at once. */
export const dueOf = ({ due_ms: due, leaves_ms: leaves, paused }, show) =>
  paused ? "paused" : show(due ?? leaves);

/** The peculiarities of a timer. */
export function stateOf({ cancelled, due_ms: due, rolled, level, shard }) {
  const rolls = "Due after the roll window: it is written to its timer topic again before";
  const tags = [
    cancelled ? tag("cancelled", "bad") : null,
    due === null ? tag("dead letter", "warn") : rolled ? tag("rolls", "", rolls) : null,
    level === null ? null : tag(`level ${level}`),
    shard === undefined ? null : tag(`shard ${shard}`),
  ].filter(Boolean);
  return el("span", tags.length ? tags.flatMap((each) => [each, " "]) : "pending");
}

/** A list of names and values. */
export function list(rows) {
  return el(
    "dl.fields",
    rows.flatMap(([name, value]) => [el("dt", name), el("dd", value)]),
  );
}

/** A list of texts. */
export const bullets = (lines) =>
  el(
    "ul.sample",
    lines.map((line) => el("li", line)),
  );

/** An instant alone. */
export const clock = (ms) => el("time", { datetime: iso(ms), title: full(ms) }, instant(ms));

/** An instant and how far it is, which stays true while it is shown. */
export function moment(ms) {
  const distance = el("span.muted.relative", { "data-ms": ms }, relative(ms));
  return el("span.moment", clock(ms), " ", distance);
}

/** Writes all distances again. Near ones change each second, others seldom: only then is the page
 * touched. */
export function refreshTimes() {
  for (const element of document.querySelectorAll(".relative[data-ms]")) {
    const ms = Number(element.dataset.ms);
    const text = relative(ms);
    if (element.textContent !== text) {
      element.textContent = text;
    }
  }
}
