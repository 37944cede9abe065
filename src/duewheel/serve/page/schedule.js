// One recurring schedule: its fields, its next instants, and what can be done with it.

import { code, list } from "./cells.js";
import { ask, open } from "./dialogs.js";
import { announce, button, el, note } from "./dom.js";
import { duration, wallTime } from "./format.js";
import { nextInstants, pauseSchedule, resumeSchedule, stopSchedule } from "./operations.js";
import { moment } from "./times.js";

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
    label: "Pause",
    grave: true,
    says: ["No instant fires until it is resumed. What it misses is not made up for.", AHEAD],
    done: "is paused",
  },
  resume: {
    call: resumeSchedule,
    label: "Resume",
    grave: false,
    says: ["The instants from now on fire; those of the pause do not."],
    done: "is resumed",
  },
  stop: {
    call: stopSchedule,
    label: "Stop for good",
    grave: true,
    says: ["It is deleted, and this cannot be undone.", AHEAD],
    done: "is stopped",
  },
};

/**
 * Opens a schedule.
 * @param {object} schedule a row of the list
 * @param {function(): void} changed called after a change
 */
export async function openSchedule(schedule, changed) {
  const dialog = open(`Schedule ${schedule.name}`, "side");
  const result = el("p", { class: "note", role: "status" });
  show(dialog, schedule, result, changed);
  await showInstants(dialog, schedule);
}

function show(dialog, schedule, result, changed) {
  const { state } = schedule;
  const names = state === "stopped" ? [] : [state === "paused" ? "resume" : "pause", "stop"];
  const actions = names.map((name) => {
    const act = () => run(CHANGES[name], dialog, schedule, result, changed);
    return button(CHANGES[name].label, act, { class: name === "stop" ? "grave" : null });
  });
  const instants = dialog.body.querySelector(".instants") ?? el("div", { class: "instants" });
  dialog.body.replaceChildren(
    el("div", { class: "row" }, actions),
    result,
    list(fieldsOf(schedule)),
    el("h3", {}, "Next instants"),
    instants,
  );
  (actions[0] ?? dialog.querySelector("button")).focus();
}

async function run({ call, label, grave, says, done }, dialog, schedule, result, changed) {
  const { name } = schedule;
  const agreed = await ask({ title: `${label}: ${name}?`, says, action: label, grave });
  if (!agreed) {
    return;
  }
  let text;
  try {
    const found = await call(name);
    text = found.applied
      ? `${name} ${done}.`
      : `Written: ${name} ${done} once duewheel recur, ingest and dequeue run.`;
    const present = { ...schedule, ...found };
    show(dialog, present, result, changed);
    showInstants(dialog, present);
  } catch (error) {
    text = `Nothing is known to have changed: ${error.message}.`;
  }
  result.textContent = text;
  announce(text);
  changed();
}

function fieldsOf(schedule) {
  const { cron, zone, every_ms: every, state, applied } = schedule;
  return [
    ["State", applied ? state : `${state}, not in effect yet`],
    ["Fires", cron === null ? `every ${duration(every)}` : code(cron)],
    ...(cron === null ? [] : [["Zone", zone]]),
    ["Target", code(schedule.target)],
    ["Timer topic", code(schedule.timer_topic)],
    ["Missed instants", MISSED[schedule.missed]],
    ["Last firing", schedule.last_due_ms === null ? "none yet" : moment(schedule.last_due_ms)],
  ];
}

async function showInstants(dialog, { name, zone, state }) {
  const shown = dialog.body.querySelector(".instants");
  if (state === "stopped") {
    shown.replaceChildren(note("None: it is stopped."));
    return;
  }
  shown.replaceChildren(note("Reading from Kafka"));
  try {
    const { due_ms: instants } = await nextInstants(name);
    shown.replaceChildren(
      ...(state === "paused" ? [note("It is paused: these would be next.", "warn")] : []),
      el(
        "ol",
        { class: "sample" },
        instants.map((ms) =>
          el(
            "li",
            {},
            moment(ms),
            zone === null ? null : el("span", { class: "muted" }, ` ${wallTime(ms, zone)}`),
          ),
        ),
      ),
    );
  } catch (error) {
    shown.replaceChildren(note(`They cannot be read: ${error.message}.`, "bad"));
  }
}
