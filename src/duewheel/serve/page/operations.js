// The operations of the API that the page uses, one function each.

import { change, read } from "./api.js";
import { root } from "./route.js";

const at = (shard) => (shard === undefined ? "" : `${root()}shards/${shard}/`);
const ONE = ({ handle, shard }) => `${at(shard)}v1/timers/${encodeURIComponent(handle)}`;
const SCHEDULE = (name) => `v1/schedules/${encodeURIComponent(name)}`;
const OF = ({ timer_topic: topic }) => ({ timer_topic: topic }); // a name belongs to its timer topic
const BACKGROUND = { background: true };

// ---- reads; those in the background are repeated by the page, and never ask for a token ---------

export const status = () => read("v1/status", {}, BACKGROUND);
export const stats = () => read("v1/stats", {}, BACKGROUND);
export const fleet = () => read("v1/fleet", {}, BACKGROUND);
export const lateness = () => read("v1/lateness", {}, BACKGROUND);

/** Why the shard is not ready; answers also while its files are recovered. */
export const readiness = () => read("readyz", {}, BACKGROUND);

/** Counts by due time. */
export const histogram = (from, to, buckets) =>
  read("v1/histogram", { from, to, buckets }, BACKGROUND);

/** A page of timers, by the instant at which they leave the wheel. */
export const timers = (filter, limit, page, background) =>
  read("v1/timers", { ...filter, limit, page }, { background });
export const fleetTimers = (filter, limit, background) =>
  read("v1/fleet/timers", { ...filter, limit }, { background });

/** One of the shard that it names, or of this one, as the changes below. */
export const oneTimer = (timer) => read(ONE(timer));
export const deadLetters = (code, page) => read("v1/dead-letters", { code, page, limit: 100 });
export const deadLetter = (partition, offset) => read(`v1/dead-letters/${partition}/${offset}`);
export const schedules = (wanted) => read("v1/schedules", wanted);
export const nextInstants = (row) => read(`${SCHEDULE(row.name)}/next`, OF(row));

export const receipts = (wanted, page) => read("v1/receipts", { ...wanted, page, limit: 100 });

/** Asks for the token of reads by one that may ask. */
export const unlock = () => read("v1/status");

// ---- changes ------------------------------------------------------------------------------------

export const cancel = (timer) => change("DELETE", ONE(timer));
export const reschedule = (timer, due) => change("POST", `${ONE(timer)}/reschedule`, due);
export const fire = (timer) => change("POST", `${ONE(timer)}/fire`);
export const cancelAll = (filter, atMost, dryRun) =>
  change("POST", "v1/cancel", { filter, at_most: atMost, dry_run: dryRun });
export const replay = (wanted, dryRun) =>
  change("POST", "v1/dead-letters/replay", { ...wanted, dry_run: dryRun });
export const pauseSchedule = (row, note) =>
  change("POST", `${SCHEDULE(row.name)}/pause`, { note }, OF(row));
export const resumeSchedule = (row) =>
  change("POST", `${SCHEDULE(row.name)}/resume`, null, OF(row));
export const triggerSchedule = (row) =>
  change("POST", `${SCHEDULE(row.name)}/trigger`, null, OF(row));
export const stopSchedule = (row) => change("DELETE", SCHEDULE(row.name), null, OF(row));
export const pause = (process) => change("POST", `v1/pause/${process}`);
export const resume = (process) => change("POST", `v1/resume/${process}`);
