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
  await load(open("Timer", "side"), handle, changed);
}

async function load(dialog, handle, changed) {
  dialog.body.replaceChildren(note("Loading"));
  try {
    show(dialog, await oneTimer(handle), changed);
  } catch (error) {
    dialog.body.replaceChildren(
      note(
        error.code === "not_pending" ? NOT_PENDING : `It cannot be read: ${error.message}.`,
        "bad",
      ),
    );
    focusFirst(dialog);
  }
}

const NOT_PENDING =
  "It is not pending: it was delivered or cancelled, or ingest has not taken it yet, or, if it rolls, its copy.";

function show(dialog, timer, changed) {
  const result = el("p", { class: "note", role: "status" });
  const state = el("span", {}, stateOf(timer));
  const actions = el("div", { class: "row" });
  const another = (label, handle) => button(label, () => load(dialog, handle, changed));
  const run = async (pressed, action) => {
    disable(actions, true); // one change at a time
    const outcome = await action(timer).catch(failed);
    disable(actions, false);
    if (outcome === null) {
      pressed.focus();
      return;
    }
    result.textContent = outcome.text;
    if (outcome.state !== undefined) {
      state.replaceChildren(stateAfter(outcome));
      actions.replaceChildren(
        ...(outcome.state === null ? [another("Read it again", timer.handle)] : []),
        ...(outcome.next === null ? [] : [another("Show the new timer", outcome.next)]),
      );
    }
    focusFirst(dialog, actions);
    announce(outcome.text);
    changed();
  };
  const offer = (label, action, attributes) =>
    button(label, ({ currentTarget }) => run(currentTarget, action), attributes);
  actions.append(
    offer("Postpone", postponeTimer),
    offer("Fire now", fireTimer),
    offer("Cancel the timer", cancelTimer, { class: "grave" }),
  );
  dialog.body.replaceChildren(
    timer.cancelled ? note("It is cancelled: the message will not be delivered.", "warn") : actions,
    result,
    fields(timer, state),
    el("h3", {}, "Message"),
    ...messageOf(timer),
  );
  focusFirst(dialog, actions);
}

function disable(actions, isDisabled) {
  for (const each of actions.children) {
    each.disabled = isDisabled;
  }
}

function focusFirst(dialog, actions = null) {
  const first = dialog.contains(actions) ? actions.querySelector("button") : null;
  (first ?? dialog.querySelector("button")).focus();
}

// One that is not pending can be read again at most; after another failure all is as before.
function failed({ code: problem, message }) {
  const text = `Nothing is known to have changed: ${message}.`;
  return problem === "not_pending" ? { text, state: null, next: null } : { text };
}

/** The state of a timer by the reply to its change. */
function stateAfter({ state }) {
  return state === null
    ? el("span", { class: "muted" }, "unknown until it is read again")
    : el("span", { class: state === "cancelled" ? "tag bad" : "tag" }, state);
}

function fields(timer, state) {
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
    ["State", state],
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
