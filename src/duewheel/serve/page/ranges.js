// Ranges of the histogram: where they begin, and how wide a bar is. Bars begin at whole seconds,
// minutes, hours or days of this zone: a bar that moves with every read cannot be clicked.

import { DAY, day, HOUR, instant, MINUTE, now, offsetMs, SECOND, timeOfDay } from "./format.js";

const BARS_MAX = 60;
const HORIZON_BARS_MAX = 370; // the API has 400

export const NAMED = [
  { name: "minute", label: "Minute", width: SECOND, bars: 60 },
  { name: "hour", label: "Hour", width: MINUTE, bars: 60 },
  { name: "day", label: "Day", width: HOUR, bars: 24 },
  { name: "all", label: "All", width: DAY, bars: 40 },
];

const WIDTHS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 5, 7, 10, 30, 100, 365].map((n) => n * DAY),
];

function floorTo(ms, width) {
  const offset = offsetMs(ms);
  return Math.floor((ms + offset) / width) * width - offset;
}

/**
 * @typedef {object} Range
 * @property {number} from
 * @property {number} width of a bar
 * @property {number} bars how many
 */

/**
 * A named range, from now on. The first bar has begun, so one more is needed to reach as far as
 * the name says. @returns {Range}
 */
export function named(name, longestDelayMs) {
  const found = NAMED.find((each) => each.name === name) ?? NAMED[1];
  if (found.name !== "all") {
    return { from: floorTo(now(), found.width), width: found.width, bars: found.bars + 1 };
  }
  const width = Math.ceil(longestDelayMs / HORIZON_BARS_MAX / DAY) * DAY;
  return { from: floorTo(now(), DAY), width, bars: Math.ceil(longestDelayMs / width) + 1 };
}

/** A range between two instants, with bars of a round width; none is finer than `precisionMs`. @returns {Range} */
export function between(from, to, precisionMs) {
  const wanted = Math.max((to - from) / BARS_MAX, precisionMs);
  const width = WIDTHS.find((each) => each >= wanted) ?? Math.ceil(wanted / DAY) * DAY;
  const begin = floorTo(from, width);
  return { from: begin, width, bars: Math.max(1, Math.ceil((to - begin) / width)) };
}

/** The bars of a range, with labels. The last one has no tick: its text would be cut. */
export function barsOf(range, counts) {
  // Ticks stand at round times. Narrow pages show every second one (parts.css).
  const every = WIDTHS.find((each) => each >= (range.width * range.bars) / 9) ?? range.width;
  return counts.map((n, i) => {
    const from = range.from + i * range.width;
    const to = from + range.width;
    const isTick = i < counts.length - 1 && from === floorTo(from, every);
    const tick = isTick ? tickOf(from, range.width) : null;
    return { from, to, count: n, label: span(from, to), tick };
  });
}

/** A span of time in words: the day is said once. */
export function span(from, to) {
  const width = to - from;
  const finest = finestOf(from, width);
  if (width % DAY === 0 && new Date(from).getHours() === 0) {
    return width === DAY ? day(from) : `${day(from)} to ${day(to - 1)}`;
  }
  const end = day(from) === day(to - 1) ? timeOfDay(to, finest) : instant(to, finest);
  return `${instant(from, finest)} to ${end}`;
}

const tickOf = (from, width) => (width >= DAY ? day(from) : timeOfDay(from, finestOf(from, width)));
const finestOf = (from, width) =>
  width % SECOND ? 1 : width % MINUTE || from % MINUTE ? SECOND : MINUTE;
