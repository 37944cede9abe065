// Dead letters, and their replay.

import { bullets, code, keyOf, list, moment, sizeOf, tag } from "./cells.js";
import { ask, fill, open } from "./dialogs.js";
import { button, el, field, input } from "./dom.js";
import { count, counted } from "./format.js";
import { ListView, pages } from "./list_view.js";
import { messageOf } from "./message.js";
import { deadLetter, deadLetters, replay } from "./operations.js";

const REPLAY_MAX = 10_000; // by the API
const CODE = { name: "code", label: "Code", hint: "TIMER_ERROR_CODE; empty: all", maxlength: 100 };

/** The view. */
export function deadLettersView(section) {
  const view = new ListView(section, {
    title: "Dead letters",
    one: "dead letter",
    order: ", oldest first in each partition",
    heads: ["Written", "Code", "Reason", "Key", "#Size", "Partition, offset", "Replay"],
    fields: [CODE],
    tools: [button("Replay", () => replayLetters(view))],
    begin: ({ code: wanted }) => pages("letters", (page) => deadLetters(wanted, page)),
    cells: (letter) => [
      moment(letter.written_ms),
      whole(code(letter.code ?? "none")),
      el("span.words", letter.error ?? ""),
      whole(keyOf(letter)),
      sizeOf(letter),
      whole(code(placeOf(letter))),
      whole(replayOf(letter)),
    ],
    key: placeOf,
    open: openLetter,
    empty: () =>
      view.form.values.code ? "No dead letter has this code." : "There are no dead letters.",
  });
  return view;
}

const whole = (value) => el("span.whole", value);
const placeOf = ({ partition, offset }) => `${partition}, ${offset}`;
const replayOf = ({ replayed }) => (replayed ? tag("replayed") : tag("not replayed", "warn"));

function openLetter({ partition, offset }) {
  const { body } = open("Dead letter", "side");
  fill(
    body,
    () => deadLetter(partition, offset),
    (found) => [
      list([
        ["Written", moment(found.written_ms)],
        ["Code", code(found.code ?? "none")],
        ["Reason", found.error ?? ""],
        ["Record", code(found.source ?? "unknown")],
        ["Key", keyOf(found)],
        ["Stored in", code(`partition ${found.partition}, offset ${found.offset}`)],
        ["Replay", replayOf(found)],
      ]),
      ...messageOf(found),
    ],
  );
}

async function replayLetters(view) {
  const wanted = await wantedOf(view.form.values.code);
  if (wanted === null) {
    return;
  }
  await view.changeAll(
    () => replay(wanted, true),
    ({ replayed: n }) => (n ? null : "No dead letter waits for a replay."),
    ({ replayed: n, topics }) => ({
      title: `Replay ${counted(n, "dead letter")}?`,
      says: [
        "Their messages are written again, each once: a rejected one to its timer topic, an undeliverable one to its target. This cannot be undone. What Kafka or the rules refuse again becomes a dead letter again.",
        bullets(lines(topics)),
      ],
      action: `Replay ${counted(n, "dead letter")}`,
      grave: true,
    }),
    () => replayed(wanted),
  );
}

/** Asks which dead letters. */
async function wantedOf(present) {
  const chosen = input({ value: present, maxlength: 100 });
  const topic = input({ maxlength: 249 });
  const limit = input({ type: "number", min: 1, max: REPLAY_MAX, value: 1000 });
  const agreed = await ask({
    title: "Replay dead letters",
    says: ["First they are counted; nothing is written before you have seen how many."],
    fields: [
      field("Code", chosen, "empty: all"),
      field("Target for all of them", topic, "empty: the topic that each was on its way to"),
      field("At most", limit),
    ],
    check: () =>
      limit.validity.valid && limit.value ? null : `Give a number from 1 to ${count(REPLAY_MAX)}.`,
    action: "Count",
    decline: "Close",
  });
  return agreed
    ? {
        code: chosen.value.trim() || null,
        to_topic: topic.value.trim() || null,
        limit: Number(limit.value),
      }
    : null;
}

async function replayed(wanted) {
  const { replayed: n, refused } = await replay(wanted, false);
  const again = lines(refused).join(", ");
  return `${counted(n, "dead letter was", "dead letters were")} replayed.${again ? ` Dead letters again: ${again}.` : ""}`;
}

const lines = (counts) => Object.entries(counts).map(([name, n]) => `${name}: ${count(n)}`);
