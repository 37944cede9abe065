// Recurring schedules. They are in Kafka only: they are read when this view is opened or asked, not
// again and again.

import { code } from "./cells.js";
import { button, el, note, table } from "./dom.js";
import { counted, duration, now, relative, timeOfDay } from "./format.js";
import { LatestRead } from "./latest_read.js";
import { schedules } from "./operations.js";
import { openSchedule } from "./schedule.js";
import { moment } from "./times.js";

const HEADS = ["Schedule", "State", "Fires", "Target", "Next", "Last"];

/** See the module's head. */
export class Schedules {
  constructor(section) {
    this.reads = new LatestRead();
    this.status = el("p", { class: "caption", role: "status" });
    this.scheduler = el("div", {});
    this.list = el("div", { class: "list" });
    section.append(
      el(
        "div",
        { class: "head" },
        el("h1", {}, "Schedules"),
        button("Refresh", () => this.#load()),
      ),
      this.scheduler,
      this.status,
      this.list,
    );
  }

  /** The view is shown. */
  routed() {
    this.#load();
  }

  async #load() {
    this.status.textContent = "Reading from Kafka";
    await this.reads.run(
      schedules,
      (found) => this.#show(found),
      (error) => {
        this.status.textContent = `Schedules cannot be read: ${error.message}.`;
      },
    );
  }

  #show({ schedules: rows, scheduler, heartbeat_ms: heartbeat }) {
    this.scheduler.replaceChildren(...schedulerOf(scheduler, heartbeat));
    this.status.textContent = `${counted(rows.length, "schedule")}; read at ${timeOfDay(now())}.`;
    const focused = document.activeElement?.dataset?.schedule;
    this.list.replaceChildren(
      rows.length
        ? table(
            "Recurring schedules",
            HEADS,
            rows.map((row) => this.#row(row)),
          )
        : note("There are no schedules: duewheel schedule set makes one."),
    );
    this.list.querySelector(`[data-schedule="${CSS.escape(focused ?? "")}"]`)?.focus();
  }

  #row(row) {
    if (row.state === "unreadable") {
      const why = "another version has written it: it does not fire";
      return [code(row.name), stateOf(row), why, "", "", ""];
    }
    const opener = button(row.name, () => openSchedule(row, () => this.#load()), {
      class: "link",
      "data-schedule": row.name,
    });
    return [
      opener,
      stateOf(row),
      firesOf(row),
      code(row.target),
      row.next_due_ms === null ? muted("none") : moment(row.next_due_ms),
      row.last_due_ms === null ? muted("none yet") : moment(row.last_due_ms),
    ];
  }
}

const muted = (text) => el("span", { class: "muted" }, text);

/** When a schedule fires, in its own words. */
function firesOf({ cron, zone, every_ms: every }) {
  return cron === null ? `every ${duration(every)}` : el("span", {}, code(cron), ` ${zone}`);
}

/** The state of a schedule. */
function stateOf({ state, applied }) {
  const kind = { active: "good", paused: "warn" }[state] ?? "bad";
  const words = [el("span", { class: `tag ${kind}` }, state)];
  if (!applied && state !== "unreadable") {
    words.push(" ", el("span", { class: "tag warn" }, "not in effect yet"));
  }
  return el("span", {}, words);
}

function schedulerOf(state, heartbeat) {
  if (state === "running") {
    return [];
  }
  const since = heartbeat === null ? "" : ` since ${relative(heartbeat)}`;
  const text = {
    none: "No scheduler runs: no schedule fires until duewheel recur does.",
    silent: `The scheduler is silent${since}: firings of more than the next minute are not written.`,
  }[state];
  return [note(text, "bad")];
}
