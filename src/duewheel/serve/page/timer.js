// One timer: its fields, its message if the API shows bodies, and the changes of it. Each
// change says its consequences first, and then the reply.

import { clock, code, keyOf, list, moment, muted, stateOf, tag } from "./cells.js";
import { carryOut, fill, open } from "./dialogs.js";
import { button, el, field, note } from "./dom.js";
import { DAY, full, HOUR, instant, MINUTE, fromInput, now, or, relative, zone } from "./format.js";
import { messageOf } from "./message.js";
import { cancel, fire, oneTimer, reschedule } from "./operations.js";
import { timeInput } from "./search_form.js";

/**
 * Opens a timer.
 * @param {{handle: string, shard: ?number}} timer without a shard it is of this one
 * @param {function(): void} changed called after a change
 */
export function openTimer(timer, changed) {
  load(open("Timer", "side"), timer, changed);
}

async function load(dialog, { handle, shard }, changed) {
  await fill(
    dialog.body,
    () => oneTimer({ handle, shard }),
    (timer) => show(dialog, { ...timer, shard }, changed),
    ({ code: problem, message }) =>
      problem === "not_pending"
        ? "It is not pending: it was delivered or cancelled, or ingest has not taken it yet, or, if it rolls, its copy."
        : `It cannot be read: ${message}.`,
  );
  focusFirst(dialog);
}

function show(dialog, timer, changed) {
  const result = el("p.note", { role: "status" });
  const state = el("span", stateOf(timer));
  const actions = el("div.row");
  const parts = { dialog, timer, changed, result, state, actions };
  actions.append(
    button("Postpone", ({ target }) => act(parts, target, postponed(timer))),
    button("Fire now", ({ target }) => act(parts, target, fired(timer))),
    button("Cancel the timer", ({ target }) => act(parts, target, cancelled(timer)), {
      class: "grave",
    }),
  );
  return [
    timer.cancelled ? note("It is cancelled: the message will not be delivered.", "warn") : actions,
    result,
    list(rowsOf(timer, state)),
    ...messageOf(timer),
  ];
}

function rowsOf(timer, state) {
  const { due_ms: due, leaves_ms: leaves, partition, paused } = timer;
  return [
    ["Due", paused ? "paused" : or(due, moment, "at once")],
    ["Exactly", paused ? "" : or(due, full, "")],
    ["Leaves the wheel", timer.rolled ? el("span", moment(leaves), " to roll") : clock(leaves)],
    ["Target", code(timer.topic + (partition === null ? "" : `, partition ${partition}`))],
    ["Key", keyOf(timer)],
    ["Id", code(timer.id)],
    ["Record", code(timer.source)],
    ["Handle", code(timer.handle ?? "none")],
    ["State", state],
  ];
}

function focusFirst(dialog) {
  (dialog.body.querySelector(".row button") ?? dialog.querySelector("button")).focus();
}

// ---- changes ------------------------------------------------------------------------------------

/**
 * @typedef {object} Change
 * @property {object} question as of `ask`
 * @property {function(): Promise<object>} call makes it; the result has the `answer` of the reply
 * @property {function(object): string} done the text of a result
 * @property {Object<string, string>} texts that follow it, by the answer; `null`: there is none
 * @property {Object<string, string>} states of the timer, by the answer; without one it is unknown
 * @property {boolean} [stays] the timer in its place stays pending
 */

/**
 * Makes a change; leaves the buttons that make sense after it.
 * @param {Change} change
 */
async function act({ dialog, timer, changed, result, state, actions }, pressed, change) {
  const again = (label, handle) =>
    button(label, () => load(dialog, { ...timer, handle }, changed));
  const after = (known, next) => {
    const unknown = muted("unknown until it is read again");
    state.replaceChildren(known ? tag(known, known === "cancelled" ? "bad" : "") : unknown);
    actions.replaceChildren(
      ...(known ? [] : [again("Read it again", timer.handle)]),
      ...(next ? [again("Show the new timer", next)] : []),
    );
  };
  actions.inert = true; // one change at a time
  const agreed = await carryOut(result, change.question, async () => {
    try {
      const found = await change.call();
      after(change.states[found.answer], change.stays ? found.handle : null);
      return change.done(found) + (change.texts[found.answer] ?? change.texts.null);
    } catch (error) {
      if (error.code === "not_pending") {
        after(null, null); // after any other failure all is as before
      }
      throw error;
    }
  });
  actions.inert = false;
  if (!agreed) {
    pressed.focus();
    return;
  }
  focusFirst(dialog);
  changed();
}

/** A paragraph that begins with the timer. */
function named({ topic, id, due_ms: due, paused }, rest) {
  const when = paused ? "paused" : `due ${instant(due)} (${relative(due)})`;
  return el("p", `The message for ${topic}, id `, code(id), `, ${when}, ${rest}`);
}

const cancelled = (timer) => ({
  question: {
    title: "Cancel this timer?",
    says: [
      named(timer, "will not be delivered, and this cannot be undone."),
      "A cancel is written to the timer topic. If the timer leaves before ingest has taken it, the message is delivered: the reply says which.",
    ],
    action: "Cancel the timer",
    grave: true,
  },
  call: () => cancel(timer),
  done: () => "",
  texts: {
    cancelled: "Cancelled: the message will not be delivered.",
    already_delivered: "Too late: the message was delivered before.",
    unknown: "The reply is `unknown`: no such timer was found, or its log is no longer on disk.",
    null: "The cancel is written. There is no reply yet, or no reply topic: read the timer again.",
  },
  states: { cancelled: "cancelled", already_delivered: "delivered" },
});

const REPLACED = {
  texts: {
    cancelled: " The timer before it will not be delivered.",
    already_delivered: " But the timer before it had left already: the message is delivered twice.",
    unknown:
      " Whether the timer before it was stopped is unknown: the message may be delivered twice.",
    null: " Whether the timer before it was stopped is not known yet: there is no reply yet, or no reply topic.",
  },
  states: { cancelled: "replaced", already_delivered: "delivered" },
};

const fired = (timer) => ({
  ...REPLACED,
  question: {
    title: "Fire this timer now?",
    says: [
      named(
        timer,
        `is delivered to ${timer.topic} at once, usually within a second, and not again at its due time.`,
      ),
      "A delivery cannot be undone. A new timer replaces this one, with the same message; should this one leave meanwhile, the message is delivered twice, and the reply says so.",
    ],
    action: "Fire now",
    grave: true,
  },
  call: () => fire(timer),
  done: () => "It is due now.",
});

const LATER = [
  [MINUTE, "by 1 minute"],
  [5 * MINUTE, "by 5 minutes"],
  [15 * MINUTE, "by 15 minutes"],
  [HOUR, "by 1 hour"],
  [DAY, "by 1 day"],
  [0, "to a time"],
];

/** The fields of a postponement, and the due time that they have: null or NaN without one. */
function dueFields(timer) {
  const options = LATER.map(([ms, label]) => el("option", { value: ms }, label));
  const choice = el("select", { oninput: update }, options);
  const at = timeInput(timer.due_ms);
  const atField = field(`New due time (${zone()})`, at);
  const preview = el("p", { role: "status" });
  const due = () =>
    Number(choice.value) ? timer.due_ms + Number(choice.value) : fromInput(at.value);
  at.addEventListener("input", update);
  update();
  return { due, fields: [field("Postpone", choice), atField, preview] };

  function update() {
    atField.hidden = Number(choice.value) !== 0;
    preview.textContent = due() ? `New: ${instant(due())}, ${relative(due())}.` : "";
  }
}

function whyNoDueTime(ms) {
  if (!ms) {
    return "Give a time.";
  }
  return ms > now() ? null : "This time is past: Fire now delivers at once.";
}

function postponed(timer) {
  const { due, fields } = dueFields(timer);
  return {
    ...REPLACED,
    question: {
      title: "Postpone this timer?",
      says: [
        named(timer, "gets another due time: a new timer with the same message replaces it."),
        "Should this one leave meanwhile, the message is delivered twice, and the reply says so.",
      ],
      fields,
      check: () => whyNoDueTime(due()),
      action: "Postpone",
    },
    call: () => reschedule(timer, { deliver_at: due() }),
    done: () => `It is due ${instant(due())}.`,
    stays: true,
  };
}
