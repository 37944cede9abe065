// Dead letters, and their replay.

import { code, keyOf, list } from "./cells.js";
import { ask, open } from "./dialogs.js";
import { announce, button, el, field, note } from "./dom.js";
import { bytes, count, counted } from "./format.js";
import { deadLetter, deadLetters, replay } from "./operations.js";
import { PagedList } from "./paged_list.js";
import { change, route } from "./route.js";
import { messageOf } from "./timer.js";
import { moment } from "./times.js";

const REPLAY_MAX = 10_000; // by the API
const HEADS = ["Written", "Code", "Reason", "Key", "#Size", "Place", "Replay"];

/** See the module's head. */
export class DeadLetters {
  constructor(section) {
    this.code = null;
    this.input = el("input", {
      type: "text",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 100,
    });
    this.list = new PagedList("Dead letters", "dead letter", HEADS, {
      read: (page) => this.#read(page),
      cells: cellsOf,
      empty: () =>
        this.code ? "No dead letter has this code." : "There are no dead letters.",
    });
    const submit = (event) => {
      event.preventDefault();
      change({ code: this.input.value.trim() });
      this.list.load();
    };
    section.append(
      el(
        "div",
        { class: "head" },
        el("h1", {}, "Dead letters"),
        el(
          "div",
          { class: "row" },
          button("Refresh", () => this.list.load()),
          button("Replay", () => this.#replay()),
        ),
      ),
      el(
        "form",
        { class: "search", role: "search", "aria-label": "Dead letters", onsubmit: submit },
        field("Code", this.input, "TIMER_ERROR_CODE; empty: all"),
        el("div", { class: "row" }, el("button", { type: "submit", class: "main" }, "Search")),
      ),
      ...this.list.elements,
    );
  }

  /** The view is shown, or its address has changed. */
  routed() {
    const { code = "" } = route().parameters;
    if (code !== this.code) {
      this.code = code;
      this.input.value = code;
      this.list.load();
    }
  }

  async #read(page) {
    const { letters: rows, next } = await deadLetters(this.code, page);
    return { rows, next };
  }

  async #replay() {
    const result = await replayLetters(this.code).catch((error) => `${error.message}.`);
    if (result !== null) {
      await this.list.load();
      this.list.status.textContent = result;
      announce(result);
    }
  }
}

function cellsOf(letter) {
  const opener = button(moment(Date.parse(letter.time)), () => show(letter), { class: "link" });
  const size = letter.value_bytes === null ? "null" : bytes(letter.value_bytes);
  return [
    opener,
    whole(code(letter.code ?? "none")),
    el("span", { class: "words" }, letter.error ?? ""),
    whole(keyOf(letter)),
    size,
    whole(code(`${letter.partition}@${letter.offset}`)),
    el(
      "span",
      { class: letter.replayed ? "tag" : "tag warn" },
      letter.replayed ? "replayed" : "waiting",
    ),
  ];
}

const whole = (value) => el("span", { class: "whole" }, value);

async function show(letter) {
  const dialog = open("Dead letter", "side");
  dialog.body.append(note("Reading from Kafka"));
  try {
    const found = await deadLetter(letter.partition, letter.offset);
    dialog.body.replaceChildren(
      list([
        ["Written", moment(Date.parse(found.time))],
        ["Code", code(found.code ?? "none")],
        ["Reason", found.error ?? ""],
        ["Record", code(found.source ?? "unknown")],
        ["Key", keyOf(found)],
        ["Place", code(`partition ${found.partition}, offset ${found.offset}`)],
        ["Replay", found.replayed ? "replayed" : "waiting"],
      ]),
      el("h3", {}, "Message"),
      ...messageOf(found),
    );
  } catch (error) {
    dialog.body.replaceChildren(note(`It cannot be read: ${error.message}.`, "bad"));
  }
}

async function replayLetters(present) {
  const wanted = await wantedOf(present);
  if (wanted === null) {
    return null;
  }
  const found = await replay(wanted, true);
  if (found.replayed === 0) {
    return "No dead letter waits for a replay.";
  }
  const agreed = await ask({
    title: `Replay ${counted(found.replayed, "dead letter")}?`,
    says: [
      "Their messages are written again, each once: a rejected one to its timer topic, an undeliverable one to its target. This cannot be undone. What Kafka or the rules refuse again becomes a dead letter again.",
      el(
        "ul",
        { class: "sample" },
        lines(found.topics).map((line) => el("li", {}, line)),
      ),
    ],
    action: `Replay ${counted(found.replayed, "dead letter")}`,
    grave: true,
  });
  return agreed ? outcome(await replay(wanted, false)) : null;
}

/** Asks which dead letters. */
async function wantedOf(present) {
  const input = (value, attributes) =>
    el("input", { type: "text", autocomplete: "off", spellcheck: "false", value, ...attributes });
  const chosen = input(present, { maxlength: 100 });
  const topic = input("", { maxlength: 249 });
  const limit = el("input", { type: "number", min: 1, max: REPLAY_MAX, value: 1000 });
  const agreed = await ask({
    title: "Replay dead letters",
    says: ["First they are counted; nothing is written before you have seen how many."],
    fields: [
      field("Code", chosen, "empty: all"),
      field("Target for all of them", topic, "empty: the topic that each was on its way to"),
      field("At most", limit),
    ],
    check: () =>
      Number(limit.value) >= 1 && Number(limit.value) <= REPLAY_MAX
        ? null
        : `Give a number from 1 to ${count(REPLAY_MAX)}.`,
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

function outcome({ replayed, refused }) {
  const again = lines(refused);
  return `${counted(replayed, "dead letter was", "dead letters were")} replayed.${again.length ? ` Dead letters again: ${again.join(", ")}.` : ""}`;
}

const lines = (counts) => Object.entries(counts).map(([name, n]) => `${name}: ${count(n)}`);
