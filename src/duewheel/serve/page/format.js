// Numbers, instants and durations as text. Instants are in the zone of the browser; times of the
// shard are compared with the clock of the shard.

const NUMBER = new Intl.NumberFormat("en");
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

let clockErrorMs = 0;

/** Notes the clock of the shard, as a response had it. */
export function noteClock(nowMs) {
  clockErrorMs = nowMs - Date.now();
}

/** The time by the clock of the shard. */
export const now = () => Date.now() + clockErrorMs;

export const count = (n) => NUMBER.format(n);

/** A count with its noun. */
export const counted = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** A rate, with a digit behind the point below 10. */
export function rate(perSecond) {
  return perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond));
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${unit === 0 || n >= 100 ? count(Math.round(n)) : n.toFixed(1)} ${units[unit]}`;
}

/** A duration in its two largest units. */
export function duration(ms) {
  if (ms < SECOND) {
    return `${Math.round(ms)} ms`;
  }
  if (ms < 10 * SECOND) {
    return `${Number((ms / SECOND).toFixed(1))} s`;
  }
  // rounded first: 119.9 s are 2 min, not 1 min 60 s
  const unit = ms < HOUR ? SECOND : ms < DAY ? MINUTE : HOUR;
  return inUnits(Math.round(ms / unit) * unit);
}

function inUnits(ms) {
  const units = [
    [DAY, "d"],
    [HOUR, "h"],
    [MINUTE, "min"],
    [SECOND, "s"],
  ];
  const first = Math.max(
    0,
    units.findIndex(([size]) => ms >= size),
  );
  const parts = [];
  for (const [size, name] of units.slice(first, first + 2)) {
    const number = Math.floor(ms / size);
    ms -= number * size;
    if (number > 0) {
      parts.push(`${count(number)} ${name}`);
    }
  }
  return parts.join(" ");
}

/** How far deliveries are behind. Dequeue reports it twice a second, so less than one is none. */
export const behind = (ms) => (ms < SECOND ? "none" : duration(ms));

/** How far an instant is: "in 3 min", "2 h ago". */
export function relative(ms) {
  const away = ms - now();
  if (Math.abs(away) < SECOND) {
    return "now";
  }
  return away > 0 ? `in ${duration(away)}` : `${duration(-away)} ago`;
}

const two = (n) => String(n).padStart(2, "0");
const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** The time of a day; with seconds or milliseconds if it has some, or `finest` wants them. */
export function timeOfDay(ms, finest = SECOND) {
  const date = new Date(ms);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (finest >= MINUTE) {
    return text;
  }
  const seconds = `${text}:${two(date.getSeconds())}`;
  return finest >= SECOND
    ? seconds
    : `${seconds}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** The day, without the year if that is the present one. */
export function day(ms) {
  const date = new Date(ms);
  const text = `${WEEKDAYS[date.getDay()]} ${date.getDate()} ${MONTHS[date.getMonth()]}`;
  return date.getFullYear() === new Date(now()).getFullYear()
    ? text
    : `${text} ${date.getFullYear()}`;
}

/** An instant: the time alone if it is today. */
export function instant(ms, finest = SECOND) {
  if (Math.abs(ms) > LAST) {
    return iso(ms);
  }
  const isToday = new Date(ms).toDateString() === new Date(now()).toDateString();
  return isToday ? timeOfDay(ms, finest) : `${day(ms)} ${timeOfDay(ms, finest)}`;
}

/** The offset of this zone from UTC at an instant, in ms; positive in the east. */
export const offsetMs = (ms) => -new Date(ms).getTimezoneOffset() * MINUTE;

/** The zone of the browser, with its offset at an instant. */
export function zone(ms = now()) {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const minutes = offsetMs(ms) / MINUTE;
  const away = Math.abs(minutes);
  const offset = `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(away / 60))}:${two(away % 60)}`;
  return name === "UTC" ? "UTC" : `${name}, ${offset}`;
}

/** An instant as clocks show it in a zone; "" if the browser does not have the zone. */
export function wallTime(ms, zoneName) {
  try {
    const options = { dateStyle: "medium", timeStyle: "medium", timeZone: zoneName };
    return `${new Date(ms).toLocaleString("en-GB", options)} in ${zoneName}`;
  } catch {
    return "";
  }
}

// A producer may ask for a time that no calendar has: it is due at once then, and shown as a number.
const LAST = 8_640_000_000_000_000;
export const iso = (ms) => (Math.abs(ms) <= LAST ? new Date(ms).toISOString() : `${ms} ms`);

/** An instant in full, for titles: with year, milliseconds and zone, and in UTC. */
export function full(ms) {
  return `${day(ms)} ${timeOfDay(ms, 1)} (${zone(ms)}); ${iso(ms)}`;
}

/** For <input type="datetime-local">. */
export function forInput(ms) {
  return Math.abs(ms) < LAST ? iso(ms + offsetMs(ms)).slice(0, 19) : "";
}

/** The instant of an <input type="datetime-local">, null if it is empty. */
export function fromInput(text) {
  const ms = text ? new Date(text).getTime() : NaN;
  return Number.isNaN(ms) ? null : ms;
}
