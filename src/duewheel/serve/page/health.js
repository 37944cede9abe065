// The conditions of the shard, as the API has them, or of the way to the API.

import { button, el } from "./dom.js";
import { counted, timeOfDay } from "./format.js";
import { readiness } from "./operations.js";

/**
 * Conditions, as those of /v1/status, while that cannot be read.
 * @param {Error} error of the read
 * @param {?number} sinceMs the last read that succeeded
 */
export async function conditionsWithout(error, sinceMs) {
  const since =
    sinceMs === null ? "Nothing was read yet." : `What is shown is from ${timeOfDay(sinceMs)}.`;
  if (error.status === 401) {
    return [{ name: "token", kind: "warn", text: "Reads need a token here." }];
  }
  if (error.status === 0) {
    const text = `${error.message}. ${since} The page tries again.`;
    return [
      { name: "unreachable", kind: "bad", text: text.charAt(0).toUpperCase() + text.slice(1) },
    ];
  }
  const known = error.status === 503 ? await readiness().catch(({ body }) => body) : null;
  const text = `The status cannot be read: ${error.message}. ${since}`;
  return known?.conditions ?? [{ name: "failed", kind: "bad", text }];
}

/** The word for all of it, and its kind. */
export function summary(status, error) {
  if (error !== null) {
    const words = {
      0: "No answer",
      401: "Locked",
      503: error.code === "recovering" && "Recovering",
    };
    return [words[error.status] || "Not ready", "bad"];
  }
  if (!status.ready) {
    return [status.recovering ? "Recovering" : "Not ready", "bad"];
  }
  if (status.role === "standby") {
    return ["Standby", "plain"];
  }
  const isPaused = [status.ingest.state, status.dequeue.state].includes("paused");
  return isPaused ? ["Paused", "warn"] : ["Ready", "good"];
}

/** Shows the first condition, and the others on request: most follow from it, and on a phone they
 * would fill the screen. One that stays is not read out again: only its detail changes.
 */
export class Conditions {
  /** @param {HTMLElement} region a live region @param {function(): void} unlock asks for a token */
  constructor(region, unlock) {
    this.unlock = unlock;
    this.shown = new Map();
    this.first = el("div");
    this.count = el("summary");
    this.others = el("div.conditions-others");
    this.more = el("details", { hidden: true }, this.count, this.others);
    region.append(this.first, this.more);
  }

  show(conditions) {
    const before = this.shown;
    this.shown = new Map();
    conditions.forEach((condition, i) => {
      const id = condition.name + condition.text;
      const element = before.get(id) ?? this.#made(condition);
      before.delete(id);
      this.shown.set(id, element);
      element.querySelector(".detail").textContent = condition.detail ?? "";
      const place = i === 0 ? this.first : this.others;
      if (element.parentElement !== place) {
        place.append(element);
      }
    });
    before.forEach((element) => element.remove());
    const others = this.others.childElementCount;
    this.more.hidden = others === 0;
    this.count.textContent = counted(others, "more condition");
  }

  #made({ name, kind, text }) {
    const detail = el("span.detail", { "aria-live": "off" });
    return el(
      "div",
      { class: `condition ${kind}`, "data-name": name },
      el("p", el("strong", text), " ", detail),
      name === "token" ? button("Give the token", this.unlock) : null,
    );
  }
}
