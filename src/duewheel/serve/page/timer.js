// One timer: its fields, its message if the API shows bodies, and what can be done with it.

import { code, keyOf, list, stateOf } from "./cells.js";
import { cancelTimer, fireTimer, postponeTimer } from "./changes.js";
import { announce, button, el, note } from "./dom.js";
import { bytes, full } from "./format.js";
import { open } from "./dialogs.js";
import { oneTimer } from "./operations.js";
import { clock, moment } from "./times.js";

/**
 * Opens a timer.
 * @param {string} handle
 * @param {function(): void} changed called after a change
 */
export async function openTimer(handle, changed) {
  const dialog = open("Timer", "side");
  dialog.body.append(note("Loading"));
  try {
    show(dialog, await oneTimer(handle), changed);
  } catch (error) {
    dialog.body.replaceChildren(
      note(
        error.code === "not_pending" ? NOT_PENDING : `It cannot be read: ${error.message}.`,
        "bad",
      ),
    );
  }
}

const NOT_PENDING =
  "It is not pending any more: it was delivered or cancelled, or it rolls and its copy is not taken yet.";

function show(dialog, timer, changed) {
  const result = el("p", { class: "note", role: "status" });
  const actions = el("div", { class: "row" });
  const run = async (action) => {
    const text = await action(timer).catch(
      (error) => `Nothing is known to have changed: ${error.message}.`,
    );
    if (text !== null) {
      result.textContent = text;
      announce(text);
      changed();
    }
  };
  actions.append(
    button("Postpone", () => run(postponeTimer)),
    button("Fire now", () => run(fireTimer)),
    button("Cancel the timer", () => run(cancelTimer), { class: "grave" }),
  );
  dialog.body.replaceChildren(
    timer.cancelled ? note("It is cancelled: the message will not be delivered.", "warn") : actions,
    result,
    fields(timer),
    el("h3", {}, "Message"),
    ...messageOf(timer),
  );
  (actions.querySelector("button") ?? dialog.querySelector("button")).focus();
}

function fields(timer) {
  const rows = [
    ["Due", timer.due_ms === null ? "at once" : moment(timer.due_ms)],
    ["Exactly", timer.due_ms === null ? "" : full(timer.due_ms)],
    [
      "Leaves the wheel",
      timer.rolled ? el("span", {}, moment(timer.leaves_ms), " to roll") : clock(timer.leaves_ms),
    ],
    [
      "Target",
      code(timer.topic + (timer.partition === null ? "" : `, partition ${timer.partition}`)),
    ],
    ["Key", keyOf(timer)],
    ["Id", code(timer.id)],
    ["Record", code(timer.source)],
    ["Handle", code(timer.handle ?? "none")],
    ["State", stateOf(timer)],
  ];
  return list(rows);
}

/** The message of a timer or dead letter: value and headers, or why they are not shown. */
export function messageOf(timer) {
  const size =
    timer.value_bytes === null ? "no value (null)" : `value of ${bytes(timer.value_bytes)}`;
  if (timer.headers === null || timer.headers === undefined) {
    const names = timer.header_names?.length
      ? `headers ${timer.header_names.join(", ")}`
      : "no headers";
    return [note(`${size}; ${names}. Bodies are hidden: serve.show_bodies shows them.`)];
  }
  const headers = timer.headers.map((header) => [
    code(header.name),
    bytesShown(header.value, header.value_base64),
  ]);
  return [
    el("p", { class: "muted" }, size),
    bytesShown(timer.value, timer.value_base64, true),
    el("h3", {}, "Headers"),
    headers.length ? list(headers) : note("None"),
  ];
}

function bytesShown(text, encoded, isBlock = false) {
  if (encoded !== null && encoded !== undefined) {
    return el(
      "div",
      {},
      el("span", { class: "muted" }, "base64 "),
      isBlock ? block(encoded) : code(encoded),
    );
  }
  return text === null || text === undefined
    ? el("span", { class: "muted" }, "null")
    : isBlock
      ? block(text)
      : code(text);
}

function block(text) {
  return el("pre", { tabindex: 0, role: "region", "aria-label": "Value" }, text);
}
