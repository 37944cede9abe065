// Puts the page together: the views, the repeated reads, and the state in the header.

import { connectToken, forgetToken } from "./api.js";
import { refreshTimes } from "./cells.js";
import { deadLettersView } from "./dead_letters.js";
import { askForToken } from "./dialogs.js";
import { announce, byId } from "./dom.js";
import { Fleet } from "./fleet.js";
import { zone } from "./format.js";
import { Histogram } from "./histogram.js";
import { Conditions, conditionsWithout, summary } from "./health.js";
import { Live } from "./live.js";
import { lateness, stats, status, unlock } from "./operations.js";
import { poll } from "./polling.js";
import { receiptsView } from "./receipts.js";
import { onRoute, route } from "./route.js";
import { schedulesView } from "./schedules.js";
import { Shard } from "./shard.js";
import { connectTheme } from "./theme.js";
import { Timers } from "./timers.js";

const OFTEN_MS = 2_000;
const SELDOM_MS = 5_000;
const FLEET_MS = 3_000;
const LONGEST_DELAY_MS = 40 * 86_400_000; // until the status has said it

let lastStatus = null;
let lastStatusAt = null;

const live = new Live(byId("strip"));
const conditions = new Conditions(byId("conditions"), giveToken);
const histogram = new Histogram(
  byId("view-pending"),
  () => lastStatus?.bounds.longest_delay_ms.value ?? LONGEST_DELAY_MS,
);
const timers = new Timers(byId("view-pending"), histogram);
const shard = new Shard(byId("view-shard"), () => polls.status());
const fleetLink = document.querySelector("nav [data-view=fleet]");
const fleet = new Fleet(byId("view-fleet"), [fleetLink, timers.allShards]);
// By the names in the navigation; `routed` is called when a view is shown, or its address changes.
const views = {
  pending: { routed: showPending },
  "dead-letters": deadLettersView(byId("view-dead-letters")),
  schedules: schedulesView(byId("view-schedules")),
  receipts: receiptsView(byId("view-receipts")),
  shard,
  fleet: { routed: () => polls.fleet() },
};

// ---- reads --------------------------------------------------------------------------------------

function showStatus(found) {
  lastStatus = found;
  lastStatusAt = Date.now();
  live.showStatus(found, lastStatusAt);
  shard.showStatus(found);
  conditions.show(found.conditions);
  showState(summary(found, null));
  byId("shard-name").textContent = `shard ${found.shard}`;
  document.body.classList.remove("stale");
}

async function failStatus(error) {
  document.body.classList.toggle("stale", lastStatus !== null);
  showState(summary(null, error));
  conditions.show(await conditionsWithout(error, lastStatusAt));
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
  status: poll(OFTEN_MS, { read: status, show: showStatus, fail: failStatus }),
  histogram: poll(OFTEN_MS, histogram),
  timers: poll(SELDOM_MS, timers),
  stats: poll(SELDOM_MS, { read: stats, show: showStats, fail: (error) => shard.showStats(error) }),
  fleet: poll(FLEET_MS, fleet),
  lateness: poll(OFTEN_MS, {
    read: lateness,
    show: (found) => live.showLateness(found, Date.now()),
    fail: (error) => live.failLateness(error),
  }),
};

function refreshAll() {
  Object.values(polls).forEach((read) => read());
}

// ---- views --------------------------------------------------------------------------------------

function showView({ view }) {
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const isCurrent = link.dataset.view === view;
    byId(`view-${link.dataset.view}`).hidden = !isCurrent;
    link.ariaCurrent = isCurrent ? "page" : null;
  }
  views[view].routed();
}

let shownRange = null;

function showPending() {
  const { range = "", zoom = "" } = route().parameters;
  histogram.routed();
  timers.routed();
  if (shownRange !== range + zoom) {
    shownRange = range + zoom;
    polls.histogram();
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
  event.preventDefault(); // the part of the address after # is the view
  byId("main").focus();
});
connectTheme(byId("theme"));
byId("zone").textContent = `Times: ${zone()}`;
setInterval(refreshTimes, 1_000);
onRoute(showView);
