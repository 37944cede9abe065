// The shard: its processes with pause and resume, where pending timers gather, its topics and files.

import { code, list } from "./cells.js";
import { ask } from "./dialogs.js";
import { announce, button, el, note, table } from "./dom.js";
import { behind, bytes, count, counted, duration, relative } from "./format.js";
import { pause, resume } from "./operations.js";
import { change } from "./route.js";
import { clock, moment } from "./times.js";

const TOPICS_SHOWN = 12;
const PAUSES = {
  dequeue:
    "No timer is delivered until it is resumed, over restarts, too. What becomes due meanwhile is late; nothing is lost.",
  ingest:
    "New timers and cancels wait in Kafka until it is resumed, over restarts, too. A timer that becomes due meanwhile is late; a cancel may come too late.",
};

/** See the module's head. */
export class Shard {
  /** @param {function(): void} refresh reads the status again */
  constructor(section, refresh) {
    this.refresh = refresh;
    this.result = el("p", { class: "note", role: "status" });
    this.processes = el("div", { class: "panels" });
    this.crowds = el("div", {});
    this.topics = el("div", {});
    this.sources = el("div", {});
    this.files = el("div", {});
    section.append(
      el("div", { class: "head" }, el("h1", {}, "Shard")),
      this.result,
      this.processes,
      el(
        "div",
        { class: "panels" },
        el("section", { class: "panel" }, el("h2", {}, "Hot slots"), this.crowds),
        el("section", { class: "panel" }, el("h2", {}, "Pending by target"), this.topics),
      ),
      el(
        "div",
        { class: "panels" },
        el("section", { class: "panel" }, el("h2", {}, "Timer topics"), this.sources),
        el("section", { class: "panel" }, el("h2", {}, "Files"), this.files),
      ),
    );
    this.cards = { ingest: this.#card("ingest"), dequeue: this.#card("dequeue") };
    this.processes.append(this.cards.ingest.element, this.cards.dequeue.element);
  }

  #card(process) {
    const toggle = button("Pause", () => this.#toggle(process));
    const body = el("div", {});
    const title = process === "ingest" ? "Ingest" : "Dequeue";
    const head = el("div", { class: "head" }, el("h2", {}, title), toggle);
    return {
      toggle,
      body,
      element: el("section", { class: "panel", "aria-label": title }, head, body),
    };
  }

  /** @param {object} status of /v1/status */
  showStatus(status) {
    this.status = status;
    for (const name of ["ingest", "dequeue"]) {
      const { toggle, body } = this.cards[name];
      const isPaused = status[name].state === "paused";
      toggle.textContent = isPaused ? "Resume" : "Pause";
      toggle.setAttribute("aria-label", `${isPaused ? "Resume" : "Pause"} ${name}`);
      body.replaceChildren(list(name === "ingest" ? ingestRows(status) : dequeueRows(status)));
    }
    this.sources.replaceChildren(...sourcesOf(status));
    this.files.replaceChildren(list(fileRows(status)));
  }

  /** @param {object} stats of /v1/stats */
  showStats(stats) {
    this.crowds.replaceChildren(list(crowdRows(stats, this.status)));
    const topics = Object.entries(stats.by_topic).sort(([, a], [, b]) => b - a);
    if (this.topics.contains(document.activeElement)) {
      return; // a link that is replaced loses the focus
    }
    const rows = topics
      .slice(0, TOPICS_SHOWN)
      .map(([topic, n]) => [topicLink(topic), count(n), share(n, stats.pending)]);
    this.topics.replaceChildren(
      rows.length
        ? table("Pending timers by target", ["Target", "#Timers", "Share"], rows)
        : note("No timer is pending."),
      ...(topics.length > TOPICS_SHOWN
        ? [note(`And ${counted(topics.length - TOPICS_SHOWN, "target")} more: duewheel stats.`)]
        : []),
    );
  }

  /** The counts cannot be read. */
  failStats(error) {
    this.crowds.replaceChildren(note(`They cannot be counted: ${error.message}.`, "bad"));
  }

  async #toggle(process) {
    const isPaused = this.status?.[process].state === "paused";
    const agreed =
      isPaused ||
      (await ask({
        title: `Pause ${process}?`,
        says: [PAUSES[process]],
        action: `Pause ${process}`,
        grave: true,
      }));
    if (!agreed) {
      return;
    }
    try {
      await (isPaused ? resume : pause)(process);
      this.result.textContent = isPaused ? `${process} is resumed.` : `${process} is paused.`;
    } catch (error) {
      this.result.textContent = `${error.message}.`;
    }
    announce(this.result.textContent);
    this.refresh();
  }
}

function processRows(status, name) {
  const { state, pid } = status[name];
  const run = status.run?.[name];
  const rows = [
    ["State", el("span", { class: state === "running" ? "tag good" : "tag warn" }, state)],
    ["Process", pid === null ? "none" : String(pid)],
  ];
  if (run?.restarts) {
    rows.push(
      ["Restarts", count(run.restarts)],
      ["Last end", `exit code ${run.last_exit_code}: ${run.last_reason ?? "unknown"}`],
    );
  }
  if (run?.next_try_ms) {
    rows.push(["Next start", moment(run.next_try_ms)]);
  }
  return rows;
}

function ingestRows(status) {
  const { ingest } = status;
  const lag =
    ingest.lag === null
      ? "Kafka was not asked yet"
      : ingest.lag
        ? `${counted(ingest.lag, "message")}, the oldest for ${duration(ingest.lag_ms)}`
        : "none";
  return [
    ...processRows(status, "ingest"),
    ["Lag", lag],
    ["Batch", ingest.batch_age_ms ? `for ${duration(ingest.batch_age_ms)}` : "nothing waits"],
    ["Kafka asked", ingest.lag_asked_ms ? relative(ingest.lag_asked_ms) : "not yet"],
  ];
}

function dequeueRows(status) {
  const { dequeue } = status;
  return [
    ...processRows(status, "dequeue"),
    ["Delivered up to", dequeue.floor_ms === null ? "nothing yet" : clock(dequeue.floor_ms)],
    ["Behind", dequeue.behind_ms === null ? "unknown" : behind(dequeue.behind_ms)],
    [
      "Clock",
      dequeue.clock_skew_ms === null
        ? "unknown"
        : `${Math.abs(dequeue.clock_skew_ms)} ms ${dequeue.clock_skew_ms < 0 ? "behind" : "ahead of"} the brokers`,
    ],
    [
      "Since its start",
      dequeue.delivered === null
        ? "unknown"
        : `${count(dequeue.delivered)} delivered, ${counted(dequeue.dead_letters, "dead letter")}`,
    ],
  ];
}

function crowdRows(stats, status) {
  const limit = status?.bounds.hot_slot_rows.value ?? null;
  const isHot = limit !== null && stats.slot_max > limit;
  const rule = limit === null ? "no limit: dequeue.hot_slot is none" : `limit ${count(limit)}`;
  return [
    [
      "Largest slot",
      el(
        "span",
        {},
        counted(stats.slot_max, "timer"),
        " ",
        el("span", { class: isHot ? "tag warn" : "muted" }, isHot ? `above the ${rule}` : rule),
      ),
    ],
    [
      "Due within 1 s, 1 min",
      `${count(stats.within_s["1"] ?? 0)}, ${count(stats.within_s["60"] ?? 0)}`,
    ],
    ["First", stats.oldest_ms === null ? "none" : moment(stats.oldest_ms)],
    ["Beyond the ring", count(stats.beyond_ring)],
    [
      "Roll",
      `${count(stats.rolls.pending)}; ${count(stats.rolls.next_hour)} within an hour, at most ${count(Math.round(stats.rolls.per_second_max))} a second`,
    ],
  ];
}

function sourcesOf(status) {
  const topics = status.timer_topics;
  const partitions = Object.entries(status.ingest.high_water);
  const problems = Object.entries({ ...topics?.left_out, ...topics?.faulty });
  return [
    topics === null
      ? note("Ingest has not listed them yet.")
      : list([
          ["Read", topics.read.join(", ") || "none"],
          ...problems.map(([topic, reason]) => [
            topic,
            el("span", { class: "tag warn" }, String(reason)),
          ]),
        ]),
    partitions.length
      ? table(
          "Next offset of each timer partition",
          ["Partition", "#Next offset"],
          partitions.map(([name, offset]) => [code(name), count(offset)]),
        )
      : note("No partition was read yet."),
  ];
}

function fileRows({ data_dir: folder, disk, delivered, bounds }) {
  return [
    ["Data directory", code(folder)],
    ["Free", `${bytes(disk.free_bytes)}; ingest stops below ${bytes(disk.min_free_bytes)}`],
    ["Waiting for room", counted(disk.rows_without_room, "message")],
    ["Delivered in all", count(delivered)],
    ["Longest delay", duration(bounds.longest_delay_ms.value)],
  ];
}

function topicLink(topic) {
  const show = (event) => {
    event.preventDefault();
    change({ topic }, { view: "pending" });
  };
  return el(
    "a",
    { href: `#pending?${new URLSearchParams({ topic })}`, class: "code", onclick: show },
    topic,
  );
}

function share(n, total) {
  const percent = total ? (n / total) * 100 : 0;
  const bar = el("span", { class: "share-fill", style: { width: `${Math.max(percent, 0.5)}%` } });
  return el(
    "span",
    { class: "share" },
    el("span", { class: "share-bar", "aria-hidden": "true" }, bar),
    el("span", { class: "share-text" }, `${percent < 1 ? "< 1" : Math.round(percent)} %`),
  );
}
