// The parts of a timer or a dead letter that several views show.

import { el } from "./dom.js";

/** Text that a producer wrote, or a name of Kafka's. */
export const code = (text) =>
  text === "" ? el("span", { class: "muted" }, "empty") : el("span", { class: "code" }, text);

/** The key of a timer or dead letter. */
export function keyOf({ key, key_base64: encoded }) {
  if (encoded !== null && encoded !== undefined) {
    return el("span", {}, code(encoded), " ", el("span", { class: "muted" }, "base64"));
  }
  return key === null || key === undefined ? el("span", { class: "muted" }, "none") : code(key);
}

/** What is special about a timer. */
export function stateOf(timer) {
  const words = [];
  if (timer.cancelled) {
    words.push(el("span", { class: "tag bad" }, "cancelled"));
  }
  if (timer.due_ms === null) {
    words.push(el("span", { class: "tag warn" }, "dead letter"));
  } else if (timer.rolled) {
    words.push(
      el(
        "span",
        {
          class: "tag",
          title: "Beyond the roll window: it is written to its timer topic again before",
        },
        "rolls",
      ),
    );
  }
  if (timer.level !== null && timer.level !== undefined) {
    words.push(el("span", { class: "tag" }, `level ${timer.level}`));
  }
  return el("span", {}, words.length ? words.flatMap((word) => [word, " "]) : "pending");
}

/** A list of names and values. */
export function list(rows) {
  return el(
    "dl",
    { class: "fields" },
    rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}
