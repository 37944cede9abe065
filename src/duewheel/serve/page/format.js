// Numbers, instants, durations and the text of producers, as shown. Instants are in the zone of the
// browser, and all of them in one format, which inputs take, too; they are compared with the clock of
// the shard.

export const SECOND = 1000;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

const NUMBER = new Intl.NumberFormat("en");
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const UNITS = { d: DAY, h: HOUR, min: MINUTE, s: SECOND };

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

/** A rate, with a digit after the point below 10. */
export const rate = (perSecond) =>
  perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond));

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
  // Rounded first: 119.9 s are 2 min, not 1 min 60 s.
  const finest = ms < HOUR ? SECOND : ms < DAY ? MINUTE : HOUR;
  let left = Math.round(ms / finest) * finest;
  const parts = Object.entries(UNITS).map(([name, size]) => {
    const n = Math.floor(left / size);
    left -= n * size;
    return n ? `${count(n)} ${name}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

/** A value as text, or a word in the place of null. */
export const or = (value, show, none = "unknown") => (value === null ? none : show(value));

/** A delay: none at 0. */
export const delay = (ms) => (ms ? duration(ms) : "none");

/** How far an instant is: "in 3 min", "2 h ago". */
export function relative(ms) {
  const away = ms - now();
  if (Math.abs(away) < SECOND) {
    return "now";
  }
  return away > 0 ? `in ${duration(away)}` : `${duration(-away)} ago`;
}

const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escaped(character) {
  const hex = character.codePointAt(0).toString(16);
  const [kind, digits] = hex.length > 4 ? ["U", 8] : hex.length > 2 ? ["u", 4] : ["x", 2];
  return SHORT[character] ?? `\\${kind}${hex.padStart(digits, "0")}`;
}

/** A text whose controls are escaped, as by the commands: an id may have one that changes the direction
 * of the text after it, or that cannot be seen. Those in `kept` stay.
 */
export const printable = (text, kept = " ") =>
  text.replace(/[\p{C}\p{Z}]/gu, (each) => (kept.includes(each) ? each : escaped(each)));

// ---- instants: 2026-11-24 07:26:09.123 ----------------------------------------------------------

// A producer may ask for a time that no calendar has: it is due at once then, and shown as a number.
const LAST = 8_640_000_000_000_000 - DAY;
const isInCalendar = (ms) => Math.abs(ms) <= LAST;

/** For programs, in UTC. */
export const iso = (ms) => (isInCalendar(ms) ? new Date(ms).toISOString() : `${ms} ms`);

/** The offset of this zone from UTC at an instant, in ms; positive in the east. */
export const offsetMs = (ms) => -new Date(ms).getTimezoneOffset() * MINUTE;

const plain = (ms) => iso(ms).replace("T", " ").slice(0, -1);
const local = (ms) => plain(ms + offsetMs(ms));
const cut = (text, finest) =>
  text.slice(0, finest >= MINUTE ? -7 : finest >= SECOND ? -4 : undefined);

/** The day. */
export const day = (ms) => local(ms).split(" ")[0];

/** The time of a day: to the minute, second or ms. */
export const timeOfDay = (ms, finest = SECOND) => cut(local(ms).split(" ")[1], finest);

/** An instant: the time alone if it is today. */
export function instant(ms, finest = SECOND) {
  if (!isInCalendar(ms)) {
    return iso(ms);
  }
  return day(ms) === day(now()) ? timeOfDay(ms, finest) : cut(local(ms), finest);
}

/** An instant with milliseconds and zone, and in UTC. */
export function full(ms) {
  if (!isInCalendar(ms)) {
    return iso(ms);
  }
  return offsetMs(ms) ? `${local(ms)} ${ZONE}; ${plain(ms)} UTC` : `${plain(ms)} UTC`;
}

/** The zone of the browser, with its present offset. */
export function zone() {
  const minutes = Math.abs(offsetMs(now()) / MINUTE);
  const parts = [Math.floor(minutes / 60), minutes % 60].map((n) => String(n).padStart(2, "0"));
  const sign = offsetMs(now()) < 0 ? "−" : "+";
  return ZONE === "UTC" ? "UTC" : `${ZONE}, UTC${sign}${parts.join(":")}`;
}

/** An instant as clocks show it in a zone; "" if the browser does not have the zone. */
export function wallTime(ms, zoneName) {
  try {
    const options = { dateStyle: "short", timeStyle: "medium", timeZone: zoneName };
    return `${new Date(ms).toLocaleString("sv", options)} in ${zoneName}`; // Swedish is ISO-8601
  } catch {
    return "";
  }
}

/** The text of an instant in an input; "" if no input can have it. */
export const forInput = (ms) => (isInCalendar(ms) ? local(ms).replace(/\.000$/, "") : "");

/** The instant of an input: null if it is empty, NaN if it has another text. */
export function fromInput(text) {
  if (text.trim() === "") {
    return null;
  }
  const [, date, time = "00:00"] =
    /^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?))?$/.exec(text.trim()) ?? [];
  return new Date(`${date}T${time}`).getTime();
}
