// Puts the page together: the views, what is read how often, and what is said of it.

import { connectToken, forgetToken } from "./api.js";
import { DeadLetters } from "./dead_letters.js";
import { askForToken } from "./dialogs.js";
import { announce, byId } from "./dom.js";
import { zone } from "./format.js";
import { Future } from "./future.js";
import { Conditions, conditionsOf, conditionsWithout, summary } from "./health.js";
import { Live } from "./live.js";
import { lateness, readiness, stats, status, unlock } from "./operations.js";
import { poll } from "./polling.js";
import { Receipts } from "./receipts.js";
import { onRoute, route } from "./route.js";
import { Schedules } from "./schedules.js";
import { Shard } from "./shard.js";
import { connectTheme } from "./theme.js";
import { refreshTimes } from "./times.js";
import { Timers } from "./timers.js";

const OFTEN_MS = 2_000;
const SELDOM_MS = 5_000;
const METRICS_MS = 10_000; // a scrape of dequeue, which has better things to do
const LONGEST_DELAY_MS = 40 * 86_400_000; // until the status has said it

const isShown = (view) => route().view === view;

let lastStatus = null;
let lastStatusAt = null;

const live = new Live(byId("strip"));
const conditions = new Conditions(byId("conditions"), giveToken);
const future = new Future(
  byId("view-pending"),
  () => lastStatus?.bounds.longest_delay_ms.value ?? LONGEST_DELAY_MS,
);
const timers = new Timers(byId("view-pending"), future);
const letters = new DeadLetters(byId("view-dead-letters"));
const recurring = new Schedules(byId("view-schedules"));
const receipts = new Receipts(byId("view-receipts"));
const shard = new Shard(byId("view-shard"), () => polls.status());

// ---- reads --------------------------------------------------------------------------------------

function showStatus(found) {
  lastStatus = found;
  lastStatusAt = Date.now();
  live.showStatus(found, lastStatusAt);
  shard.showStatus(found);
  conditions.show(conditionsOf(found));
  showState(summary(found, null));
  byId("shard-name").textContent = `shard ${found.shard}`;
  document.body.classList.remove("stale");
}

async function failStatus(error) {
  document.body.classList.toggle("stale", lastStatus !== null);
  showState(summary(null, error));
  conditions.show(
    conditionsWithout(error, lastStatusAt, error.status === 503 ? await reasons() : {}),
  );
}

/** Why the shard is not ready, by a probe that answers without its files. */
async function reasons() {
  try {
    await readiness();
    return {};
  } catch (problem) {
    return problem.body?.reasons ?? {};
  }
}

function showState([text, kind]) {
  byId("state").className = `state ${kind}`;
  byId("state-text").textContent = text;
  document.title = kind === "good" ? "duewheel" : `${text}: duewheel`;
}

function showStats(found) {
  shard.showStats(found);
  timers.offer(Object.keys(found.by_topic));
}

const polls = {
  status: poll({ everyMs: OFTEN_MS, call: status, show: showStatus, fail: failStatus }),
  future: poll({
    everyMs: OFTEN_MS,
    call: () => future.read(),
    show: (found) => future.show(found),
    fail: (error) => future.fail(error),
    wanted: () => isShown("pending"),
  }),
  timers: poll({
    everyMs: SELDOM_MS,
    call: () => timers.search(true),
    show: () => {},
    fail: () => {},
    wanted: () => isShown("pending") && timers.isLive,
  }),
  stats: poll({
    everyMs: SELDOM_MS,
    call: stats,
    show: showStats,
    fail: (error) => shard.failStats(error),
  }),
  lateness: poll({
    everyMs: METRICS_MS,
    call: lateness,
    show: (found) => live.showLateness(found, Date.now()),
    fail: (error) => live.latenessUnknown(error),
  }),
};

function refreshAll() {
  Object.values(polls).forEach((read) => read());
}

// ---- views --------------------------------------------------------------------------------------

function showView({ view, parameters }) {
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const isCurrent = link.dataset.view === view;
    byId(`view-${link.dataset.view}`).hidden = !isCurrent;
    link.toggleAttribute("aria-current", isCurrent);
    if (isCurrent) {
      link.setAttribute("aria-current", "page");
    }
  }
  if (view === "pending") {
    showPending(parameters);
  } else if (view === "dead-letters") {
    letters.routed();
  } else if (view === "schedules") {
    recurring.routed();
  } else if (view === "receipts") {
    receipts.routed();
  }
}

let shownRange = null;

function showPending({ range = "", zoom = "" }) {
  future.routed();
  timers.routed();
  if (shownRange !== range + zoom) {
    shownRange = range + zoom;
    polls.future();
  }
}

// ---- token, theme, keys -------------------------------------------------------------------------

async function giveToken() {
  await unlock().catch(() => {}); // declined: the condition stays
  refreshAll();
}

connectToken(askForToken, (hasToken) => {
  byId("forget").hidden = !hasToken;
  if (hasToken) {
    refreshAll();
  }
});
byId("forget").addEventListener("click", () => {
  forgetToken();
  byId("theme").focus();
  announce("The token is forgotten");
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part of the address behind # is the view
  byId("main").focus();
});
connectTheme(byId("theme"));
byId("zone").textContent = `Times: ${zone()}`;
setInterval(refreshTimes, 1_000);
onRoute(showView);
