// The operations of the API that the page uses, one function each.

import { change, read } from "./api.js";

const ONE = (handle) => `v1/timers/${encodeURIComponent(handle)}`;
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
export const oneTimer = (handle) => read(ONE(handle));
export const deadLetters = (code, page) => read("v1/dead-letters", { code, page, limit: 100 });
export const deadLetter = (partition, offset) => read(`v1/dead-letters/${partition}/${offset}`);
export const schedules = (wanted) => read("v1/schedules", wanted);
export const nextInstants = (row) => read(`${SCHEDULE(row.name)}/next`, OF(row));

export const receipts = (wanted, page) => read("v1/receipts", { ...wanted, page, limit: 100 });

/** Asks for the token of reads by one that may ask. */
export const unlock = () => read("v1/status");

// ---- changes ------------------------------------------------------------------------------------

export const cancel = (handle) => change("DELETE", ONE(handle));
export const reschedule = (handle, due) => change("POST", `${ONE(handle)}/reschedule`, due);
export const fire = (handle) => change("POST", `${ONE(handle)}/fire`);
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
