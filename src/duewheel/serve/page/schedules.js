// Recurring schedules: the recurring timers that are pending. They are read when this view is opened
// or asked, not again and again: it is a search of all timers.

import { code, list, moment, muted, tag } from "./cells.js";
import { carryOut, fill, open } from "./dialogs.js";
import { button, el, field, input, note } from "./dom.js";
import { duration, or, wallTime, zone } from "./format.js";
import { ListView, pages } from "./list_view.js";
import {
  nextInstants,
  pauseSchedule,
  resumeSchedule,
  schedules,
  stopSchedule,
  triggerSchedule,
} from "./operations.js";
import { unreadIn } from "./timer_search.js";

const MISSED = {
  skip: "do not fire, but for those that are at most a minute late",
  one: "the latest fires, late",
  all: "fire, late",
};
const MEANWHILE = "A firing that leaves meanwhile is delivered.";
const CHANGES = {
  pause: {
    call: pauseSchedule,
    action: "Pause",
    grave: false,
    says: ["No instant fires until it is resumed. What it misses is not made up for.", MEANWHILE],
    asks: () => input({ maxlength: 255 }),
    done: "is paused",
  },
  resume: {
    call: resumeSchedule,
    action: "Resume",
    grave: false,
    says: ["The instants from now on fire; those of the pause do not."],
    done: "is resumed",
  },
  trigger: {
    call: triggerSchedule,
    action: "Fire once more",
    grave: true,
    says: ["Its message is delivered at once, usually within a second. Its next instant stays."],
    done: "fires once more",
  },
  stop: {
    call: stopSchedule,
    action: "Stop for good",
    grave: true,
    says: ["It is deleted, and this cannot be undone.", MEANWHILE],
    done: "is stopped",
  },
};

/** The view. */
export function schedulesView(section) {
  const view = new ListView(section, {
    title: "Schedules",
    one: "schedule",
    order: `; times in ${zone()}`,
    heads: ["Schedule", "State", "Fires", "Timer topic", "Target", "Next"],
    fields: [{ name: "timer_topic", label: "Timer topic", maxlength: 249 }],
    begin: (wanted) => pages("schedules", () => schedules(wanted), saysOf),
    cells: cellsOf,
    key: ({ name, timer_topic: topic }) => `${name} ${topic}`,
    open: (row) => openSchedule(row, () => view.load(true)),
    empty: () => "There are no schedules: duewheel schedule set makes one.",
  });
  return view;
}

const saysOf = ({ shard, recovering, more }) =>
  unreadIn(recovering ? [shard] : []) + (more ? " There may be more, which fire later." : "");

function cellsOf(row) {
  const next = or(row.next_due_ms, moment, muted("none"));
  return [row.name, stateOf(row), firesOf(row), code(row.timer_topic), code(row.target), next];
}

/** When a schedule fires, in its own words. */
const firesOf = ({ cron, zone: place, every_ms: every }) =>
  cron === null ? `every ${duration(every)}` : el("span", code(cron), ` ${place}`);

function stateOf({ state, note: why, applied }) {
  const kind = { active: "good", paused: "warn" }[state] ?? "bad";
  const pending = applied ? [] : [" ", tag("not in effect yet", "warn")];
  return el("span", tag(state, kind), pending, why ? muted(` ${why}`) : []);
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
  const names =
    state === "stopped" ? [] : [state === "paused" ? "resume" : "pause", "trigger", "stop"];
  const buttons = names.map((name) => {
    const act = () => changeSchedule(CHANGES[name], dialog, schedule, parts);
    return button(CHANGES[name].action, act, { class: CHANGES[name].grave ? "grave" : null });
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
      ["No instant before", or(schedule.starts_ms, moment, "any time")],
      ["No instant after", or(schedule.ends_ms, moment, "any time")],
      ["Jitter", or(schedule.jitter_ms, duration, "none")],
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
      () => nextInstants(schedule),
      (found) => instantsOf(found, schedule),
    );
  }
}

async function changeSchedule({ call, action, grave, says, asks, done }, dialog, schedule, parts) {
  const { name } = schedule;
  const why = asks?.();
  const fields = why ? [field("Note", why, "is listed with it")] : [];
  const agreed = await carryOut(
    parts.result,
    { title: `${action}: ${name}?`, says, action, grave, fields },
    async () => {
      const found = await call(schedule, why?.value ?? "");
      if (call === triggerSchedule) {
        return `${name} ${done}.`;
      }
      showSchedule(dialog, { ...schedule, ...found }, parts);
      return found.applied
        ? `${name} ${done}.`
        : `Written: ${name} ${done} once ingest has taken it.`;
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
