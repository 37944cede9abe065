// The shard: its processes with pause and resume, where pending timers gather, its topics and files.

import { code, list, moment, tag } from "./cells.js";
import { carryOut } from "./dialogs.js";
import { button, el, head, note, table } from "./dom.js";
import { INSTANTS } from "./facts.js"; // by the server: the fields of /v1/status that are instants
import { bytes, count, counted, delay, duration, or } from "./format.js";
import { pause, resume } from "./operations.js";

const TARGETS_SHOWN = 12;
const PAUSES = {
  ingest:
    "New timers and cancels wait in Kafka until it is resumed, over restarts, too. A timer that becomes due meanwhile is late; a cancel may come too late.",
  dequeue:
    "No timer is delivered until it is resumed, over restarts, too. What becomes due meanwhile is late; nothing is lost.",
};
// The panels in their order: each shows a part of /v1/status and /v1/stats. A new fact is a new row.
const PANELS = [
  { title: "Ingest", process: "ingest", show: ({ status }) => [list(processRows(status, "ingest"))] },
  { title: "Dequeue", process: "dequeue", show: ({ status }) => [list(processRows(status, "dequeue"))] },
  { title: "When timers are due", show: ofCounts(crowdOf) },
  { title: "Pending by target", show: ofCounts(targetsOf) },
  { title: "Timer topics", show: ({ status }) => topicsOf(status) },
  { title: "Files", show: ({ status }) => [list(fileRows(status))] },
];

/** A panel that shows the counts, once they are read. */
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

// The names of facts that need another one here.
const LABELS = {
  pid: "Process",
  lag_ms: "Age of the oldest",
  lag_asked_ms: "Lag measured",
  floor_ms: "Delivered up to",
  clock_skew_ms: "This host's clock is ahead by",
};

/** A row for each fact of a part of /v1/status: its name has the unit. */
function factRows(part) {
  return Object.entries(part)
    .filter(([name, value]) => name !== "state" && (value === null || typeof value !== "object"))
    .map(([name, value]) => [labelOfFact(name), or(value, (known) => factText(name, known))]);
}

function labelOfFact(name) {
  const words = name.replace(/_(ms|bytes)$/, "").replaceAll("_", " ");
  return LABELS[name] ?? words.charAt(0).toUpperCase() + words.slice(1);
}

function factText(name, value) {
  if (typeof value !== "number") {
    return { true: "yes", false: "no", "": "none" }[value] ?? value;
  }
  if (name.endsWith("_ms")) {
    const isInstant = INSTANTS.has(name);
    return isInstant ? moment(value) : `${value < 0 ? "−" : ""}${delay(Math.abs(value))}`;
  }
  return name.endsWith("_bytes") ? bytes(value) : count(value);
}

function processRows({ run, ...status }, name) {
  const { state } = status[name];
  const { pid: _, ...ended } = run?.[name]?.last_reason ? run[name] : {};
  return [
    ["State", tag(state, state === "running" ? "good" : "warn")],
    ...factRows(status[name]),
    ...factRows(ended),
  ];
}

function crowdOf({ oldest_ms: next, within_s: within, slot_max: largest, ...stats }, { bounds }) {
  const limit = bounds.hot_slot_rows.value;
  const rule = or(limit, (n) => `the limit is ${count(n)}`, "no limit (dequeue.hot_slot is none)");
  const { pending, next_hour: soon, per_second_max: most } = stats.rolls;
  return [
    list([
      ["Next", or(next, moment, "none")],
      ["Within a second", counted(within["1"] ?? 0, "timer")],
      ["Within a minute", counted(within["60"] ?? 0, "timer")],
      ["Largest slot", `${counted(largest, "timer")}; ${rule}`],
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
  ...factRows(disk),
  ["Delivered in all", count(delivered)],
  ["Longest delay", duration(bounds.longest_delay_ms.value)],
];
