// Recurring schedules. They are in Kafka only: they are read when this view is opened or asked, not
// again and again.

import { code, list, moment, muted, tag } from "./cells.js";
import { carryOut, fill, open } from "./dialogs.js";
import { button, el, note } from "./dom.js";
import { duration, or, relative, wallTime, zone } from "./format.js";
import { ListView, pages } from "./list_view.js";
import {
  nextInstants,
  pauseSchedule,
  resumeSchedule,
  schedules,
  stopSchedule,
} from "./operations.js";

const MISSED = {
  skip: "do not fire, but for one that is at most a minute late",
  one: "the latest fires, late",
  all: "fire, late",
};
const AHEAD =
  "Its firings of the next minute are cancelled; one that leaves meanwhile is delivered.";
const CHANGES = {
  pause: {
    call: pauseSchedule,
    action: "Pause",
    grave: true,
    says: ["No instant fires until it is resumed. What it misses is not made up for.", AHEAD],
    done: "is paused",
  },
  resume: {
    call: resumeSchedule,
    action: "Resume",
    grave: false,
    says: ["The instants from now on fire; those of the pause do not."],
    done: "is resumed",
  },
  stop: {
    call: stopSchedule,
    action: "Stop for good",
    grave: true,
    says: ["It is deleted, and this cannot be undone.", AHEAD],
    done: "is stopped",
  },
};

/** The view. */
export function schedulesView(section) {
  const scheduler = el("div.above");
  const view = new ListView(section, {
    title: "Schedules",
    one: "schedule",
    order: `; times in ${zone()}`,
    heads: ["Schedule", "State", "Fires", "Target", "Next", "Last"],
    above: [scheduler],
    begin: () =>
      pages("schedules", async () => {
        const found = await schedules();
        scheduler.replaceChildren(...schedulerOf(found));
        return found;
      }),
    cells: cellsOf,
    key: ({ name, state }) => (state === "unreadable" ? null : name),
    open: (row) => openSchedule(row, () => view.load(true)),
    empty: () => "There are no schedules: duewheel schedule set makes one.",
  });
  return view;
}

function schedulerOf({ scheduler, heartbeat_ms: heartbeat }) {
  const since = heartbeat === null ? "" : ` since ${relative(heartbeat)}`;
  const text = {
    none: "No scheduler runs: no schedule fires until duewheel recur does.",
    silent: `The scheduler is silent${since}: firings of more than the next minute are not written.`,
  }[scheduler];
  return text ? [note(text, "bad")] : [];
}

function cellsOf(row) {
  if (row.state === "unreadable") {
    const why = "another version has written it: it does not fire";
    return [code(row.name), stateOf(row), why, "", "", ""];
  }
  const { next_due_ms: next, last_due_ms: last } = row;
  return [
    row.name,
    stateOf(row),
    firesOf(row),
    code(row.target),
    or(next, moment, muted("none")),
    or(last, moment, muted("none yet")),
  ];
}

/** When a schedule fires, in its own words. */
const firesOf = ({ cron, zone: place, every_ms: every }) =>
  cron === null ? `every ${duration(every)}` : el("span", code(cron), ` ${place}`);

function stateOf({ state, applied }) {
  const kind = { active: "good", paused: "warn" }[state] ?? "bad";
  const isPending = !applied && state !== "unreadable";
  return el("span", tag(state, kind), isPending ? [" ", tag("not in effect yet", "warn")] : []);
}

// ---- one of them --------------------------------------------------------------------------------

function openSchedule(schedule, changed) {
  const dialog = open(`Schedule ${schedule.name}`, "side");
  const result = el("p.note", { role: "status" });
  const instants = el("div.instants");
  showSchedule(dialog, schedule, { result, instants, changed });
}

function showSchedule(dialog, schedule, parts) {
  const { state } = schedule;
  const names = state === "stopped" ? [] : [state === "paused" ? "resume" : "pause", "stop"];
  const buttons = names.map((name) => {
    const act = () => changeSchedule(CHANGES[name], dialog, schedule, parts);
    return button(CHANGES[name].action, act, { class: name === "stop" ? "grave" : null });
  });
  dialog.body.replaceChildren(
    el("div.row", buttons),
    parts.result,
    list([
      ["State", stateOf(schedule)],
      ["Fires", firesOf(schedule)],
      ["Target", code(schedule.target)],
      ["Timer topic", code(schedule.timer_topic)],
      ["Missed instants", MISSED[schedule.missed]],
      ["Last firing", or(schedule.last_due_ms, moment, "none yet")],
    ]),
    el("h3", "Next instants"),
    parts.instants,
  );
  (buttons[0] ?? dialog.querySelector("button")).focus();
  if (state === "stopped") {
    parts.instants.replaceChildren(note("None: it is stopped."));
  } else {
    fill(
      parts.instants,
      () => nextInstants(schedule.name),
      (found) => instantsOf(found, schedule),
    );
  }
}

async function changeSchedule({ call, action, grave, says, done }, dialog, schedule, parts) {
  const { name } = schedule;
  const agreed = await carryOut(
    parts.result,
    { title: `${action}: ${name}?`, says, action, grave },
    async () => {
      const found = await call(name);
      showSchedule(dialog, { ...schedule, ...found }, parts);
      return found.applied
        ? `${name} ${done}.`
        : `Written: ${name} ${done} once duewheel recur, ingest and dequeue run.`;
    },
  );
  if (agreed) {
    parts.changed();
  }
}

function instantsOf({ due_ms: instants }, { state, zone: place }) {
  const shown = instants.map((ms) =>
    el("li", moment(ms), place === null ? null : muted(` ${wallTime(ms, place)}`)),
  );
  return [
    ...(state === "paused" ? [note("It is paused: these would be next.", "warn")] : []),
    el("ol.sample", shown),
  ];
}
