// The shard: its processes with pause and resume, where pending timers gather, its topics and files.

import { clock, code, list, moment, tag } from "./cells.js";
import { carryOut } from "./dialogs.js";
import { button, el, head, note, table } from "./dom.js";
import { bytes, count, counted, delay, duration, or } from "./format.js";
import { pause, resume } from "./operations.js";

const TARGETS_SHOWN = 12;
const PAUSES = {
  ingest:
    "New timers and cancels wait in Kafka until it is resumed, over restarts, too. A timer that becomes due meanwhile is late; a cancel may come too late.",
  dequeue:
    "No timer is delivered until it is resumed, over restarts, too. What becomes due meanwhile is late; nothing is lost.",
};
// The panels in their order: what each shows of /v1/status and /v1/stats. A new fact is a new row.
const PANELS = [
  { title: "Ingest", process: "ingest", show: ({ status }) => [list(ingestRows(status))] },
  { title: "Dequeue", process: "dequeue", show: ({ status }) => [list(dequeueRows(status))] },
  { title: "When timers are due", show: ofCounts(crowdOf) },
  { title: "Pending by target", show: ofCounts(targetsOf) },
  { title: "Timer topics", show: ({ status }) => topicsOf(status) },
  { title: "Files", show: ({ status }) => [list(fileRows(status))] },
];

/** What a panel shows of the counts, once they are read. */
function ofCounts(show) {
  return ({ status, stats }) => {
    if (stats === null || stats instanceof Error) {
      return [
        note(stats === null ? "Not counted yet" : `They cannot be counted: ${stats.message}.`),
      ];
    }
    return show(stats, status);
  };
}

/** See the module's head. */
export class Shard {
  /** @param {function(): void} refresh reads the status again */
  constructor(section, refresh) {
    Object.assign(this, { refresh, status: null, stats: null });
    this.result = el("p.note", { role: "status" });
    this.panels = PANELS.map(({ title, process, show }) => {
      const body = el("div");
      const toggle = process ? button("Pause", () => this.#toggle(process)) : null;
      const element = el("section.panel", { "aria-label": title }, head("h2", title, toggle), body);
      return { process, show, body, toggle, element };
    });
    const panels = el(
      "div.panels",
      this.panels.map(({ element }) => element),
    );
    section.append(head("h1", "Shard"), this.result, panels);
  }

  /** The view is shown: it is read anyway. */
  routed() {}

  /** @param {object} status of /v1/status */
  showStatus(status) {
    this.status = status;
    this.#show();
  }

  /** @param {object} stats of /v1/stats; or the error in their place */
  showStats(stats) {
    this.stats = stats;
    this.#show();
  }

  #show() {
    if (this.status === null) {
      return;
    }
    for (const { process, show, body, toggle } of this.panels) {
      if (process) {
        toggle.textContent = this.status[process].state === "paused" ? "Resume" : "Pause";
        toggle.ariaLabel = `${toggle.textContent} ${process}`;
      }
      if (!body.contains(document.activeElement)) {
        body.replaceChildren(...show(this)); // a link that is replaced loses the focus
      }
    }
  }

  async #toggle(process) {
    const isPaused = this.status?.[process].state === "paused";
    const question = {
      title: `Pause ${process}?`,
      says: [PAUSES[process]],
      action: `Pause ${process}`,
      grave: true,
    };
    const agreed = await carryOut(this.result, isPaused ? null : question, async () => {
      await (isPaused ? resume : pause)(process);
      return `${process} is ${isPaused ? "resumed" : "paused"}.`;
    });
    if (agreed) {
      this.refresh();
    }
  }
}

function processRows(status, name) {
  const { state, pid } = status[name];
  const run = status.run?.[name];
  const rows = [
    ["State", tag(state, state === "running" ? "good" : "warn")],
    ["Process", or(pid, String, "none")],
  ];
  if (run?.restarts) {
    rows.push(["Restarts", count(run.restarts)]);
    rows.push(["Last end", `exit code ${run.last_exit_code}: ${run.last_reason || "unknown"}`]);
  }
  if (run?.next_try_ms) {
    rows.push(["Next start", moment(run.next_try_ms)]);
  }
  return rows;
}

function ingestRows(status) {
  const { lag, lag_ms: age, batch_age_ms: batch, lag_asked_ms: asked } = status.ingest;
  const waiting = (n) => (n ? `${counted(n, "message")}, the oldest for ${duration(age)}` : "none");
  return [
    ...processRows(status, "ingest"),
    ["Lag", or(lag, waiting)],
    ["Present batch", batch ? `begun ${duration(batch)} ago` : "nothing to read"],
    ["Lag measured", or(asked, moment, "not yet")],
  ];
}

function dequeueRows(status) {
  const { floor_ms: floor, behind_ms: behind, clock_skew_ms: skew, ...counts } = status.dequeue;
  const clockText = (ms) => `${duration(Math.abs(ms))} ${ms < 0 ? "behind" : "ahead of"} Kafka's`;
  const sinceStart = (n) => `${count(n)} delivered, ${counted(counts.dead_letters, "dead letter")}`;
  return [
    ...processRows(status, "dequeue"),
    ["Delivered up to", or(floor, clock, "nothing yet")],
    ["Behind", or(behind, delay)],
    ["This host's clock", or(skew, clockText)],
    ["Since its start", or(counts.delivered, sinceStart)],
  ];
}

function crowdOf({ oldest_ms: next, within_s: within, slot_max: largest, ...stats }, { bounds }) {
  const limit = bounds.hot_slot_rows.value;
  const isHot = limit !== null && largest > limit;
  const rule = or(limit, (n) => `the limit is ${count(n)}`, "no limit (dequeue.hot_slot is none)");
  const slot = el("span", `${counted(largest, "timer")}; `, isHot ? tag(rule, "warn") : rule);
  const { pending, next_hour: soon, per_second_max: most } = stats.rolls;
  return [
    list([
      ["Next", or(next, moment, "none")],
      ["Within a second", counted(within["1"] ?? 0, "timer")],
      ["Within a minute", counted(within["60"] ?? 0, "timer")],
      ["Largest slot", slot],
      ["After the roll window", `${counted(pending, "timer")}, written to Kafka again before`],
      ["Of these within an hour", `${count(soon)}, at most ${count(Math.round(most))} a second`],
      ["After the wheel's reach", `${counted(stats.beyond_ring, "timer")}, in files until then`],
    ]),
  ];
}

function targetsOf({ by_topic: counts, pending }) {
  const targets = Object.entries(counts).sort(([, a], [, b]) => b - a);
  const more = targets.length - TARGETS_SHOWN;
  const rows = targets.slice(0, TARGETS_SHOWN).map(([topic, n]) => {
    const href = `#pending?${new URLSearchParams({ topic })}`;
    return [el("a.code", { href }, topic), count(n), share(n, pending)];
  });
  return [
    rows.length
      ? table("Pending timers by target", ["Target", "#Timers", "Share"], rows)
      : note("No timer is pending."),
    ...(more > 0 ? [note(`And ${counted(more, "target")} more: duewheel stats.`)] : []),
  ];
}

function share(n, total) {
  const percent = total ? (n / total) * 100 : 0;
  const bar = el("span.share-fill", { style: { width: `${Math.max(percent, 0.5)}%` } });
  return el(
    "span.share",
    el("span.share-bar", { "aria-hidden": "true" }, bar),
    el("span.share-text", `${percent < 1 ? "< 1" : Math.round(percent)} %`),
  );
}

function topicsOf({ timer_topics: topics, ingest }) {
  const partitions = Object.entries(ingest.high_water);
  const problems = Object.entries({ ...topics?.left_out, ...topics?.faulty });
  const read = [["Read", topics?.read.join(", ") || "none"]];
  return [
    topics === null
      ? note("Ingest has not listed them yet.")
      : list([...read, ...problems.map(([topic, why]) => [topic, tag(why, "warn")])]),
    partitions.length
      ? table(
          "Next offset of each timer partition",
          ["Partition", "#Next offset"],
          partitions.map(([name, offset]) => [code(name), count(offset)]),
        )
      : note("No partition was read yet."),
  ];
}

const fileRows = ({ data_dir: folder, disk, delivered, bounds }) => [
  ["Data directory", code(folder)],
  ["Free", `${bytes(disk.free_bytes)}; ingest stops below ${bytes(disk.min_free_bytes)}`],
  ["Waiting for room", counted(disk.rows_without_room, "message")],
  ["Delivered in all", count(delivered)],
  ["Longest delay", duration(bounds.longest_delay_ms.value)],
];
