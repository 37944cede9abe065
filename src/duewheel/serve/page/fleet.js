// The shards of the app side by side: a row for each server that serve.shards names.

import { muted, tag } from "./cells.js";
import { el, head, note, table } from "./dom.js";
import { count, duration, or } from "./format.js";
import { fleet } from "./operations.js";
import { root } from "./route.js";

const COUNTS = ["#Pending", "#Ingest lag", "#Behind", "#Delivered"];
const HEADS = ["Shard", "State", ...COUNTS, "Condition", "Server"];
const UNKNOWN = COUNTS.map(() => "?");

/** The view; a poll reads it while it is shown. */
export class Fleet {
  /** @param {HTMLElement} section @param {HTMLElement[]} others hidden for one shard */
  constructor(section, others) {
    Object.assign(this, { section, others, isKnown: false });
    this.body = el("div");
    section.append(head("h1", "Fleet"), this.body);
  }

  /** Once, for the link; then while it is on the screen. */
  get isWanted() {
    return !this.isKnown || !this.section.hidden;
  }

  read = fleet;

  /** @param {object} found of /v1/fleet */
  show({ shards, members, absent }) {
    this.isKnown = true;
    for (const each of this.others) {
      each.hidden = shards === 1 && members.length === 1;
    }
    const known = new Set(members.map(({ status }) => status?.shard));
    const rows = [
      ...members.map(({ url, status, error }) =>
        status === null ? absentRow("?", error, url) : statusRow(status, url),
      ),
      ...absent
        .filter((shard) => !known.has(shard))
        .map((shard) => absentRow(shard, "No server has answered for its owner.", null)),
    ];
    this.body.replaceChildren(table("Shards", HEADS, rows));
  }

  fail(error) {
    this.body.replaceChildren(note(`The shards cannot be read: ${error.message}.`, "bad"));
  }
}

function statusRow(status, url) {
  const { shard, role, ready, pending, delivered, lag, behind_ms: behind, conditions } = status;
  const state = ready ? tag(role === "owner" ? "ready" : role, "good") : tag("not ready", "bad");
  return [
    el("a", { href: `${root()}shards/${shard}/` }, `${shard}`),
    state,
    or(pending, count, "?"),
    or(lag, count, "?"),
    or(behind, duration, "?"),
    count(delivered),
    conditions[0]?.text ?? "",
    serverOf(url),
  ];
}

const absentRow = (shard, text, url) => [
  `${shard}`,
  tag("no answer", "bad"),
  ...UNKNOWN,
  text,
  serverOf(url, "none"),
];

const serverOf = (url, none = "this one") =>
  url === null ? muted(none) : el("a.code", { href: url }, url);
