// What is wrong with the shard or with the way to it, and what that means for timers.

import { button, el } from "./dom.js";
import { counted, duration, timeOfDay } from "./format.js";

/**
 * @typedef {object} Condition
 * @property {string} name
 * @property {"bad"|"warn"|"plain"} kind
 * @property {string} text the fact and its consequence
 * @property {string} [detail] may change each second, and is not read out then
 */

// Of each reason of `duewheel status`: fact and consequence. The shard's own words follow as detail.
// Causes come before what follows from them: the page shows the first, and folds the others.
const NOT_READY = {
  no_data_directory: "The shard has no files yet: the first start of its processes makes them.",
  unreadable: "The files of the shard cannot be read here: what is pending is unknown.",
  recovering:
    "The files are being recovered or, at a first start, made; or messages are read from Kafka again: nothing is delivered until that ends.",
  dequeue_failing: "Dequeue keeps ending: due timers wait.",
  dequeue_not_running: "Dequeue does not run: due timers wait.",
  dequeue_silent: "Dequeue is silent: due timers may wait. It waits for Kafka, or for its disk.",
  transaction_blocked: "Kafka cannot end the shard's last transaction: due timers wait.",
  disk_full: "The disk is nearly full: new timers and cancels wait in Kafka until there is room.",
  ingest_failing: "Ingest keeps ending: new timers and cancels wait in Kafka.",
  ingest_not_running: "Ingest does not run: new timers and cancels wait in Kafka.",
  ingest_silent: "Ingest is silent: new timers and cancels may wait in Kafka.",
  no_planner: "Ingest lacks processor time: new timers and cancels wait in Kafka.",
  ends_unknown: "Kafka does not answer: how much waits there is unknown, and deliveries may wait.",
  dequeue_behind: "Deliveries are late.",
  batch_stuck: "Ingest is stuck in a batch: timers that were written are not listed here yet.",
  ingest_lag: "Ingest is behind: timers that were written are not listed here yet.",
};
const SYMPTOMS = new Set(["ends_unknown", "dequeue_behind", "batch_stuck", "ingest_lag"]);
const KINDS = ["bad", "warn", "plain"];

/** Causes first, the gravest first. @param {Condition[]} conditions @returns {Condition[]} */
function ranked(conditions) {
  const names = Object.keys(NOT_READY);
  const rank = ({ name, kind }) => [
    KINDS.indexOf(kind),
    SYMPTOMS.has(name) ? 1 : 0,
    names.indexOf(name),
  ];
  const differ = (a, b) => a.map((value, i) => value - b[i]).find((each) => each !== 0) ?? 0;
  return [...conditions].sort((a, b) => differ(rank(a), rank(b)));
}

/** Conditions that follow from the status. @returns {Condition[]} */
export function conditionsOf(status) {
  const found = Object.entries(status.not_ready).map(([name, detail]) => notReady(name, detail));
  const { dequeue, ingest, disk, quotas } = status;
  const add = (name, kind, text) => found.push({ name, kind, text });
  if (status.role === "standby") {
    add("standby", "plain", "This is a standby: it delivers nothing while its owner does.");
  }
  if (dequeue.state === "paused") {
    add("dequeue_paused", "warn", "Dequeue is paused: due timers wait for a resume.");
  }
  if (ingest.state === "paused") {
    add(
      "ingest_paused",
      "warn",
      "Ingest is paused: new timers and cancels wait in Kafka for a resume.",
    );
  }
  if (dequeue.closing_blocked) {
    add(
      "closing_blocked",
      "bad",
      `The clock of this host is ahead of the brokers' by ${duration(dequeue.clock_skew_ms)}: nothing is delivered meanwhile.`,
    );
  }
  if (dequeue.dead_letters_wait) {
    add("dead_letters_wait", "warn", "The dead-letter topic takes no writes: dead letters wait.");
  }
  for (const [topic, reason] of Object.entries(dequeue.targets_closed ?? {})) {
    const text = `${topic} takes no writes: its timers wait.`;
    found.push({ name: `target_${topic}`, kind: "warn", text, detail: reason });
  }
  if (dequeue.copies_held) {
    add(
      "copies_held",
      "warn",
      `A timer partition takes no writes: ${counted(dequeue.copies_held, "copy waits", "copies wait")}.`,
    );
  }
  for (const [topic, { per_second: rate, waiting }] of Object.entries(quotas)) {
    if (waiting) {
      add(
        `quota_${topic}`,
        "warn",
        `${topic} has reached its quota of ${rate} per second: ${counted(waiting, "message waits", "messages wait")} in Kafka.`,
      );
    }
  }
  if (disk.rows_without_room) {
    add(
      "disk",
      "bad",
      `The disk is too full: ${counted(disk.rows_without_room, "message waits", "messages wait")} for room.`,
    );
  }
  return found;
}

function notReady(name, detail) {
  return { name, kind: "bad", text: NOT_READY[name] ?? "The shard is not ready.", detail };
}

/**
 * Conditions while the status cannot be read.
 * @param {Error} error of the read
 * @param {?number} sinceMs the last read that succeeded
 * @param {object} reasons of /readyz, if that answers
 * @returns {Condition[]}
 */
export function conditionsWithout(error, sinceMs, reasons) {
  const since =
    sinceMs === null ? "Nothing was read yet." : `What is shown is from ${timeOfDay(sinceMs)}.`;
  if (error.status === 401) {
    return [{ name: "token", kind: "warn", text: "Reads need a token here." }];
  }
  if (error.status === 0) {
    return [
      {
        name: "unreachable",
        kind: "bad",
        text: `${capital(error.message)}. ${since} The page tries again.`,
      },
    ];
  }
  if (error.code in NOT_READY) {
    const others = Object.entries(reasons).filter(([name]) => name !== error.code);
    return [
      notReady(error.code, reasons[error.code]),
      ...others.map(([name, detail]) => notReady(name, detail)),
    ];
  }
  return [
    { name: "failed", kind: "bad", text: `The status cannot be read: ${error.message}. ${since}` },
  ];
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** The word for all of it, and its kind. */
export function summary(status, error) {
  if (error !== null) {
    const words = { 0: "No answer", 401: "Locked" };
    return [
      words[error.status] ?? (error.code === "recovering" ? "Recovering" : "Not ready"),
      "bad",
    ];
  }
  if (!status.ready) {
    return ["recovering" in status.not_ready ? "Recovering" : "Not ready", "bad"];
  }
  if (status.role === "standby") {
    return ["Standby", "plain"];
  }
  const isPaused = [status.ingest.state, status.dequeue.state].includes("paused");
  return isPaused ? ["Paused", "warn"] : ["Ready", "good"];
}

/** Shows the first condition, and the others on request: most follow from it, and on a phone they
 * would fill the screen. One that stays is not read out again: only its detail changes.
 */
export class Conditions {
  /** @param {HTMLElement} region a live region @param {function(): void} unlock asks for a token */
  constructor(region, unlock) {
    this.unlock = unlock;
    this.shown = new Map();
    this.first = el("div", {});
    this.count = el("summary", {});
    this.others = el("div", { class: "conditions-others" });
    this.more = el("details", { hidden: true }, this.count, this.others);
    region.append(this.first, this.more);
  }

  show(conditions) {
    const before = this.shown;
    this.shown = new Map();
    ranked(conditions).forEach((condition, i) => {
      const element = before.get(condition.name + condition.text) ?? this.#made(condition);
      before.delete(condition.name + condition.text);
      element.querySelector(".detail").textContent = condition.detail ?? "";
      this.shown.set(condition.name + condition.text, element);
      const place = i === 0 ? this.first : this.others;
      if (element.parentElement !== place) {
        place.append(element);
      }
    });
    before.forEach((element) => element.remove());
    const others = this.others.childElementCount;
    this.more.hidden = others === 0;
    this.count.textContent = counted(others, "more condition");
  }

  #made({ name, kind, text }) {
    const action = name === "token" ? button("Give the token", this.unlock) : null;
    return el(
      "div",
      { class: `condition ${kind}`, "data-name": name },
      el("p", {}, el("strong", {}, text), " ", el("span", { class: "detail", "aria-live": "off" })),
      action,
    );
  }
}
