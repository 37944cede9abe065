// The list of pending timers, with its search and the cancel of all that match.

import { code, keyOf, stateOf } from "./cells.js";
import { cancelMatching } from "./changes.js";
import { announce, button, el, field, note, table } from "./dom.js";
import { bytes, count, counted, forInput, fromInput, now, timeOfDay } from "./format.js";
import { selection } from "./future.js";
import { LatestRead } from "./latest_read.js";
import { change, route } from "./route.js";
import { bulkFilter, Search } from "./search.js";
import { openTimer } from "./timer.js";
import { moment } from "./times.js";

/** See the module's head. */
export class Timers {
  /** @param {{rolls: number, precisionMs: number}} wheel how many timers roll, the length of a slot */
  constructor(section, wheel) {
    this.wheel = wheel;
    this.asked = null; // the parameters of the search that is shown
    this.current = null; // the search that is shown
    this.rows = [];
    this.reads = new LatestRead();
    this.topics = el("datalist", { id: "topics" });
    this.status = el("p", { class: "caption", role: "status" });
    this.list = el("div", { class: "list" });
    this.moreButton = button("More", () => this.#more());
    this.cancelButton = button("Cancel all that match", () => this.#cancelAll());
    section.append(
      el(
        "div",
        { class: "head" },
        el("h2", {}, "Timers"),
        el(
          "div",
          { class: "row" },
          button("Refresh", () => this.search()),
          this.cancelButton,
        ),
      ),
      this.#form(),
      this.status,
      this.list,
      this.moreButton,
    );
  }

  #form() {
    const text = (attributes) =>
      el("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
    this.inputs = {
      id: text({ maxlength: 255 }),
      key: text({ maxlength: 4096 }),
      topic: text({ maxlength: 249, list: "topics" }),
      from: el("input", { type: "datetime-local", step: 1 }),
      to: el("input", { type: "datetime-local", step: 1 }),
    };
    this.base64 = el("input", { type: "checkbox", id: "key-base64" });
    return el(
      "form",
      {
        class: "search",
        role: "search",
        "aria-label": "Timers",
        onsubmit: (event) => this.#submit(event),
        onreset: (event) => this.#reset(event),
      },
      field("Id", this.inputs.id),
      el(
        "div",
        { class: "field" },
        field("Key", this.inputs.key),
        el(
          "span",
          { class: "check" },
          this.base64,
          el("label", { for: "key-base64" }, "in base64"),
        ),
      ),
      field("Target", this.inputs.topic),
      field("Due from", this.inputs.from),
      field("Due before", this.inputs.to),
      this.topics,
      el(
        "div",
        { class: "row" },
        el("button", { type: "submit", class: "main" }, "Search"),
        el("button", { type: "reset" }, "Clear"),
      ),
    );
  }

  #submit(event) {
    event.preventDefault();
    const { id, key, topic, from, to } = this.inputs;
    change({
      id: id.value.trim(),
      key: key.value,
      base64: this.base64.checked && key.value ? 1 : null,
      topic: topic.value.trim(),
      ...this.#dueOf(fromInput(from.value), fromInput(to.value)),
    });
    this.search();
  }

  // One end alone: until the end of time, or from now on.
  #dueOf(from, to) {
    if (from === null && to === null) {
      return { from: null, to: null };
    }
    return { from: from ?? 1, to: to ?? Date.UTC(2200, 0) };
  }

  #reset(event) {
    event.preventDefault();
    change({ id: null, key: null, base64: null, topic: null, from: null, to: null });
  }

  /** The topics that the search offers. */
  offer(topics) {
    this.topics.replaceChildren(...topics.map((topic) => el("option", { value: topic })));
  }

  /** The address has changed: searches if the search in it has. */
  routed() {
    const { id = "", key = "", base64 = "", topic = "", from = "", to = "" } = route().parameters;
    const asked = JSON.stringify([id, key, base64, topic, from, to]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.#fill({ id, key, topic });
      this.base64.checked = base64 !== "";
      this.search();
    }
  }

  #fill(texts) {
    Object.entries(texts).forEach(([name, value]) => {
      this.inputs[name].value = value;
    });
    const due = selection();
    this.inputs.from.value = due && due.from > 1 ? forInput(due.from) : "";
    this.inputs.to.value = due && due.to < Date.UTC(2200, 0) ? forInput(due.to) : "";
  }

  get #filter() {
    const { id, key, base64, topic } = route().parameters;
    const found = { id, topic, [base64 ? "key_base64" : "key"]: key };
    return Object.fromEntries(Object.entries(found).filter(([, value]) => value));
  }

  get #isFiltered() {
    return Object.keys(this.#filter).length > 0 || selection() !== null;
  }

  /** Whether the list may be read again by itself: the first timers of all, which nobody works in. */
  get isLive() {
    const isUsed = this.list.contains(document.activeElement) || this.list.matches(":hover");
    return (
      this.asked !== null &&
      !this.#isFiltered &&
      !isUsed &&
      this.rows.length <= 100 &&
      document.querySelector("dialog") === null
    );
  }

  /** Searches anew. `quiet`: what is shown stays until there is something else. */
  async search(quiet = false) {
    this.current = new Search(this.#filter, selection(), this.wheel, quiet);
    this.cancelButton.hidden = !this.#isFiltered;
    if (!quiet) {
      this.rows = [];
      this.status.textContent = "Searching";
      this.list.setAttribute("aria-busy", "true");
    }
    await this.#load(true);
  }

  async #more() {
    this.status.textContent = "Searching";
    const before = this.rows.length;
    await this.#load(false);
    this.list.querySelectorAll("tbody button")[before]?.focus();
  }

  async #load(isFirst) {
    const { current } = this;
    await this.reads.run(
      () => current.more(),
      (found) => {
        this.rows = isFirst ? found : [...this.rows, ...found];
        this.#show();
      },
      (error) => this.#fail(error),
    );
  }

  #fail(error) {
    this.list.removeAttribute("aria-busy");
    this.status.textContent = `The timers cannot be read: ${error.message}.${this.rows.length ? " Those below are older." : ""}`;
  }

  #show() {
    this.list.removeAttribute("aria-busy");
    this.status.textContent = this.#statusText();
    this.moreButton.hidden = !this.current.isOpen;
    this.moreButton.textContent = this.current.isScanning
      ? "Search on among rolled timers"
      : "More";
    this.list.replaceChildren(
      this.rows.length
        ? table(
            "Pending timers",
            ["Due", "Target", "Key", "Id", "#Size", "State"],
            this.rows.map((timer) => this.#row(timer)),
          )
        : note(this.#emptyText()),
    );
  }

  #statusText() {
    const shown = `${this.current.isOpen ? "The first " : ""}${counted(this.rows.length, "timer")}, read at ${timeOfDay(now())}.`;
    const scanned = this.current.isScanning
      ? ` ${count(this.current.scanned)} were looked through; timers beyond the roll window are listed by a scan.`
      : "";
    return this.rows.length ? shown + scanned : scanned.trim();
  }

  #emptyText() {
    if (this.current.isOpen) {
      return "None so far.";
    }
    return this.#isFiltered
      ? "No pending timer matches. A timer that was written a moment ago is listed once ingest has taken it."
      : "No timer is pending.";
  }

  #row(timer) {
    const due = timer.due_ms ?? timer.leaves_ms;
    const opener =
      timer.handle === null
        ? moment(due)
        : button(moment(due), () => openTimer(timer.handle, () => this.search(true)), {
            class: "link"
          });
    const size = timer.value_bytes === null ? "null" : bytes(timer.value_bytes);
    return [opener, code(timer.topic), keyOf(timer), code(timer.id), size, stateOf(timer)];
  }

  async #cancelAll() {
    const result = await cancelMatching(
      bulkFilter(this.#filter, selection(), this.wheel.precisionMs),
      selection() !== null && this.wheel.rolls > 0,
    );
    if (result !== null) {
      await this.search();
      this.status.textContent = result;
      announce(result);
    }
  }
}
