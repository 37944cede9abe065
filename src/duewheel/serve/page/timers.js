// The list of pending timers, with its search and the cancel of all that match.

import { bullets, code, dueOf, keyOf, moment, sizeOf, stateOf } from "./cells.js";
import { byId, button, el } from "./dom.js";
import { count, counted, duration, instant } from "./format.js";
import { selection } from "./histogram.js";
import { ListView } from "./list_view.js";
import { cancelAll } from "./operations.js";
import { change, route } from "./route.js";
import { openTimer } from "./timer.js";
import { FleetSearch, leavingIn, TimerSearch } from "./timer_search.js";

const AT_MOST = 10_000; // of a bulk cancel, by the API

/** See the module's head. */
export class Timers {
  /** @param {{rolls: number, precisionMs: number}} wheel how many timers roll, the length of a slot */
  constructor(section, wheel) {
    this.wheel = wheel;
    this.cancelButton = button("Cancel all that match", () => this.#cancelAll());
    this.view = new ListView(section, {
      level: "h2",
      title: "Timers",
      one: "timer",
      heads: ["Due", "Target", "Key", "Id", "#Size", "State"],
      fields: [
        { name: "id", label: "Id", maxlength: 255 },
        { name: "key", label: "Key", maxlength: 4096, kind: "raw" },
        { name: "base64", label: "in base64", kind: "check" },
        { name: "topic", label: "Target", maxlength: 249, list: "targets" },
        { name: "tag", label: "Tag", maxlength: 64 },
        { name: "from", label: "Due from", kind: "time" },
        { name: "to", label: "Due before", kind: "time" },
        { name: "all", label: "in all shards", kind: "check" },
      ],
      tools: [this.cancelButton],
      begin: (_, isQuiet) => this.#begin(isQuiet),
      cells: (timer) => [
        dueOf(timer, moment),
        code(timer.topic),
        keyOf(timer),
        code(timer.id),
        sizeOf(timer),
        stateOf(timer),
      ],
      key: ({ handle }) => handle,
      open: (timer) => openTimer(timer, () => this.view.load(true)),
      empty: () => this.#empty(),
    });
    this.allShards = this.view.form.fields.at(-1).control.parentElement;
    this.allShards.hidden = true; // until there are several
  }

  #empty() {
    const { where, shards, unread } = this.view.search;
    const place = where + (unread.length ? " so far" : "");
    const text = this.#isFiltered
      ? `No pending timer matches${place}. A timer that was written a moment ago is listed once ingest has taken it. `
      : `No timer is pending${place}. `;
    return shards > 1 ? [text, button("Search in all shards", () => change({ all: 1 }))] : text;
  }

  /** The targets that searches offer. */
  offer(targets) {
    byId("targets").replaceChildren(...targets.map((topic) => el("option", { value: topic })));
  }

  /** The address has changed. */
  routed() {
    this.view.routed();
  }

  #begin(isQuiet) {
    this.cancelButton.hidden = !this.#isFiltered || this.#isInAll;
    const Search = this.#isInAll ? FleetSearch : TimerSearch;
    return new Search(this.#filter, selection(), this.wheel, isQuiet);
  }

  get #isInAll() {
    return this.view.form.values.all !== "";
  }

  get #filter() {
    const { id, key, base64, topic, tag } = this.view.form.values;
    const found = { id, topic, tag, [base64 ? "key_base64" : "key"]: key };
    return Object.fromEntries(Object.entries(found).filter(([, value]) => value));
  }

  get #isFiltered() {
    return Object.keys(this.#filter).length > 0 || selection() !== null;
  }

  /** Whether the page may read the list again: the first timers of all, while no one works in it. */
  get isWanted() {
    const { table, rows, search } = this.view;
    const isUsed = table.contains(document.activeElement) || table.matches(":hover");
    const isAsked = search !== null && !this.#isFiltered && !this.#isInAll && rows.length <= 100;
    const isAlone = route().view === "pending" && document.querySelector("dialog") === null;
    return isAsked && !isUsed && isAlone;
  }

  /** Reads the list again, and shows it, or the error; that is raised for `poll` to wait longer. */
  async read() {
    const error = await this.view.load(true);
    if (error !== null) {
      throw error;
    }
  }

  #cancelAll() {
    const filter = leavingIn(this.#filter, selection(), this.wheel.precisionMs);
    const mayRoll = selection() !== null && this.wheel.rolls > 0;
    return this.view.changeAll(
      () => cancelOrCount(filter, AT_MOST, true),
      ({ matched }) =>
        matched === undefined
          ? `More than ${count(AT_MOST)} timers match: narrow the search.`
          : matched
            ? null
            : "No timer matches that is neither cancelled already nor recurring.",
      (found) => questionOf(found, mayRoll),
      ({ matched }) => cancelled(filter, matched),
    );
  }
}

/** Cancels, or counts; nothing, and an empty result, if more match than may. */
async function cancelOrCount(filter, atMost, dryRun) {
  try {
    return await cancelAll(filter, atMost, dryRun);
  } catch (error) {
    if (error.code === "conflict") {
      return {};
    }
    throw error;
  }
}

async function cancelled(filter, matched) {
  const { written, answers } = await cancelOrCount(filter, matched, false);
  if (written === undefined) {
    return "Meanwhile more timers match: nothing was cancelled.";
  }
  const replies = Object.entries(answers).map(
    ([answer, n]) => `${answer.replaceAll("_", " ")} ${count(n)}`,
  );
  const said = replies.length
    ? `Replies: ${replies.join(", ")}.`
    : "There are no replies: timer.reply_topic names no topic.";
  return `${counted(written, "cancel is", "cancels are")} written. ${said}`;
}

function questionOf({ matched, recurring, sample, shard, shards, recovering }, mayRoll) {
  const shown = sample.slice(0, 5);
  const lines = shown.map((timer) => [
    `${dueOf(timer, instant)}: ${timer.topic}, id `,
    code(timer.id),
  ]);
  if (matched > shown.length) {
    const span = Math.max(0, shown.at(-1).leaves_ms - shown[0].leaves_ms);
    lines.push(`and ${count(matched - shown.length)} more, over ${duration(span)} and longer`);
  }
  const rolls =
    "A range selects by when a timer leaves the wheel: timers beyond the roll window leave earlier than they are due, and this range does not have them.";
  return {
    title: `Cancel ${counted(matched, "timer")}?`,
    says: [
      `${counted(matched, "message")} will not be delivered, and this cannot be undone. If more than these match by then, none is cancelled.`,
      bullets(lines),
      ...(shards > 1
        ? [`They are in shard ${shard} of ${shards}: timers in the other shards stay.`]
        : []),
      ...(recurring
        ? [`${counted(recurring, "recurring timer matches, and stays", "recurring timers match, and stay")}.`]
        : []),
      ...(recovering ? ["The shard still reads its timer topics again: others may match."] : []),
      ...(mayRoll ? [rolls] : []),
    ],
    action: `Cancel ${counted(matched, "timer")}`,
    grave: true,
  };
}
