// Changes of timers: each says what will happen and asks, and returns what has happened; null if the
// person declined. That of one timer is an Outcome, that of many a text.

import { ask } from "./dialogs.js";
import { el, field } from "./dom.js";
import {
  count,
  counted,
  duration,
  forInput,
  fromInput,
  instant,
  now,
  relative,
  zone,
} from "./format.js";
import { cancel, cancelAll, fire, reschedule } from "./operations.js";

const AT_MOST = 10_000; // of a bulk cancel, by the API
const MINUTE = 60_000;
const LATER = [
  [MINUTE, "1 minute"],
  [5 * MINUTE, "5 minutes"],
  [15 * MINUTE, "15 minutes"],
  [60 * MINUTE, "1 hour"],
  [1440 * MINUTE, "1 day"],
  [0, "at another time"],
];

const name = (timer) =>
  `The message for ${timer.topic}, id ${timer.id}, due ${instant(timer.due_ms)} (${relative(timer.due_ms)})`;

/**
 * @typedef {object} Outcome
 * @property {string} text
 * @property {?string} state of the timer by the reply: "cancelled", "replaced" or "delivered"; null: unknown
 * @property {?string} next handle of the timer that replaces it and stays pending
 */

/** Cancels a timer. @returns {Promise<?Outcome>} */
export async function cancelTimer(timer) {
  const agreed = await ask({
    title: "Cancel this timer?",
    says: [
      `${name(timer)}, will not be delivered, and this cannot be undone.`,
      "A cancel is written to the timer topic. If the timer leaves before ingest has taken it, the message is delivered: the reply says which.",
    ],
    action: "Cancel the timer",
    grave: true,
  });
  if (!agreed) {
    return null;
  }
  const { answer } = await cancel(timer.handle);
  const text =
    {
      cancelled: "Cancelled: the message will not be delivered.",
      already_delivered: "Too late: the message was delivered before.",
      unknown: "The reply is `unknown`: no such timer was found, or its log is no longer on disk.",
    }[answer] ??
    "The cancel is written. There is no reply yet, or no reply topic: read the timer again.";
  const state = { cancelled: "cancelled", already_delivered: "delivered" }[answer] ?? null;
  return { text, state, next: null };
}

/** Makes a timer due now. @returns {Promise<?Outcome>} */
export async function fireTimer(timer) {
  const agreed = await ask({
    title: "Fire this timer now?",
    says: [
      `${name(timer)}, is delivered to ${timer.topic} at once, usually within a second, and not again at its due time.`,
      "A delivery cannot be undone. A new timer replaces this one, with the same message; should this one leave meanwhile, the message is delivered twice, and the reply says so.",
    ],
    action: "Fire now",
    grave: true,
  });
  if (!agreed) {
    return null;
  }
  const { answer } = await fire(timer.handle);
  return replaced(answer, "It is due now", null);
}

/** Gives a timer another due time. @returns {Promise<?Outcome>} */
export async function postponeTimer(timer) {
  const choice = el(
    "select",
    {},
    LATER.map(([ms, label]) => el("option", { value: ms }, ms ? `by ${label}` : label)),
  );
  const at = el("input", { type: "datetime-local", step: 1, value: forInput(timer.due_ms) });
  const atField = field(`New due time (${zone(timer.due_ms)})`, at);
  const preview = el("p", { role: "status" });
  const due = () =>
    Number(choice.value) ? timer.due_ms + Number(choice.value) : fromInput(at.value);
  const update = () => {
    atField.hidden = Number(choice.value) !== 0;
    preview.textContent = due() === null ? "" : `New: ${instant(due())}, ${relative(due())}.`;
  };
  choice.addEventListener("change", update);
  at.addEventListener("input", update);
  update();
  const agreed = await ask({
    title: "Postpone this timer?",
    says: [
      `${name(timer)}, gets another due time: a new timer with the same message replaces it.`,
      "Should this one leave meanwhile, the message is delivered twice, and the reply says so.",
    ],
    fields: [field("Postpone", choice), atField, preview],
    check: () =>
      due() === null
        ? "Give a time."
        : due() <= now()
          ? "This time is past: Fire now delivers at once."
          : null,
    action: "Postpone",
  });
  if (!agreed) {
    return null;
  }
  const { answer, handle } = await reschedule(timer.handle, { deliver_at: due() });
  return replaced(answer, `It is due ${instant(due())}`, handle);
}

function replaced(answer, done, next) {
  const text =
    {
      cancelled: `${done}. The timer before it will not be delivered.`,
      already_delivered: `${done}, but the timer before it had left already: the message is delivered twice.`,
      unknown: `${done}. Whether the timer before it was stopped is unknown: the message may be delivered twice.`,
    }[answer] ??
    `${done}. Whether the timer before it was stopped is not known yet: there is no reply yet, or no reply topic.`;
  const state = { cancelled: "replaced", already_delivered: "delivered" }[answer] ?? null;
  return { text, state, next };
}

/**
 * Cancels all timers that match, after a count.
 * @param {object} filter as for the API
 * @param {boolean} mayRoll whether the filter has a range, and some timers roll
 */
export async function cancelMatching(filter, mayRoll) {
  let found;
  try {
    found = await cancelAll(filter, AT_MOST, true);
  } catch (error) {
    return error.code === "conflict"
      ? `More than ${count(AT_MOST)} timers match: narrow the search.`
      : `Nothing was cancelled: ${error.message}.`;
  }
  if (found.matched === 0) {
    return "No timer matches that is not cancelled already.";
  }
  const agreed = await ask({
    title: `Cancel ${counted(found.matched, "timer")}?`,
    says: [
      `${counted(found.matched, "message")} will not be delivered, and this cannot be undone. If more than these match by then, none is cancelled.`,
      sampleOf(found),
      mayRoll
        ? "A range selects by when a timer leaves the wheel: timers beyond the roll window leave earlier than they are due, and this range does not have them."
        : "",
    ].filter(Boolean),
    action: `Cancel ${counted(found.matched, "timer")}`,
    grave: true,
  });
  return agreed ? cancelled(filter, found.matched) : null;
}

async function cancelled(filter, matched) {
  try {
    const { written, answers } = await cancelAll(filter, matched, false);
    const replies = Object.entries(answers).map(
      ([answer, n]) => `${answer.replaceAll("_", " ")} ${count(n)}`,
    );
    return `${counted(written, "cancel is", "cancels are")} written. ${replies.length ? `Replies: ${replies.join(", ")}.` : "There are no replies: timer.reply_topic names no topic."}`;
  } catch (error) {
    return error.code === "conflict"
      ? "Meanwhile more timers match: nothing was cancelled."
      : `${error.message}.`;
  }
}

function sampleOf({ matched, sample }) {
  const shown = sample.slice(0, 5);
  const more = matched - shown.length;
  return el(
    "ul",
    { class: "sample" },
    shown.map((timer) =>
      el("li", {}, `${instant(timer.due_ms ?? timer.leaves_ms)}: ${timer.topic}, id ${timer.id}`),
    ),
    more > 0
      ? el(
          "li",
          { class: "muted" },
          `and ${count(more)} more, over ${duration(Math.max(0, shown.at(-1).leaves_ms - shown[0].leaves_ms))} and longer`,
        )
      : null,
  );
}
