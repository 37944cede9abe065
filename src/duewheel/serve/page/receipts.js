// Receipts of delivered timers. They are in Kafka only: they are read when this view is opened or
// asked, not again and again.

import { code } from "./cells.js";
import { button, el, field, note, table } from "./dom.js";
import { counted, duration, forInput, fromInput, now, timeOfDay } from "./format.js";
import { receipts } from "./operations.js";
import { change, route } from "./route.js";
import { clock } from "./times.js";

const HOUR_MS = 3_600_000;

/** See the module's head. */
export class Receipts {
  constructor(section) {
    this.asked = null; // the parameters of the search that is shown
    this.rows = [];
    this.next = null;
    this.generation = 0;
    this.status = el("p", { class: "caption", role: "status" });
    this.list = el("div", { class: "list" });
    this.moreButton = button("More", () => this.#load(false));
    this.moreButton.hidden = true;
    section.append(
      el(
        "div",
        { class: "head" },
        el("h1", {}, "Receipts"),
        el(
          "div",
          { class: "row" },
          button("Refresh", () => this.#load(true)),
        ),
      ),
      this.#form(),
      this.status,
      this.list,
      this.moreButton,
    );
  }

  #form() {
    const text = (maxlength) =>
      el("input", { type: "text", autocomplete: "off", spellcheck: "false", maxlength });
    const time = () => el("input", { type: "datetime-local", step: 1 });
    this.inputs = { id: text(504), target: text(249), from: time(), to: time() };
    const submit = (event) => {
      event.preventDefault();
      const { id, target, from, to } = this.inputs;
      const before = this.asked;
      change({
        id: id.value.trim(),
        target: target.value.trim(),
        from: fromInput(from.value),
        to: fromInput(to.value),
      });
      if (this.asked === before) {
        this.#load(true); // the same search again: the address has not changed
      }
    };
    return el(
      "form",
      { class: "search", role: "search", "aria-label": "Receipts", onsubmit: submit },
      field("Id", this.inputs.id),
      field("Target", this.inputs.target),
      field("Delivered from", this.inputs.from, "empty, without an id: the last hour"),
      field("Delivered before", this.inputs.to),
      el("div", { class: "row" }, el("button", { type: "submit", class: "main" }, "Search")),
    );
  }

  /** The view is shown, or its address has changed. */
  routed() {
    const { id = "", target = "", from = "", to = "" } = route().parameters;
    const asked = JSON.stringify([id, target, from, to]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.inputs.id.value = id;
      this.inputs.target.value = target;
      this.inputs.from.value = from ? forInput(Number(from)) : "";
      this.inputs.to.value = to ? forInput(Number(to)) : "";
      this.#load(true);
    }
  }

  // Without an id the topic's first receipts would come, days old.
  get #wanted() {
    const { id, target, from, to } = route().parameters;
    return { id, target, from: from || id ? from : now() - HOUR_MS, to };
  }

  async #load(isFirst) {
    this.generation += 1;
    const { generation } = this;
    this.status.textContent = "Reading from Kafka";
    try {
      this.wanted = isFirst ? this.#wanted : this.wanted;
      const part = await receipts(this.wanted, isFirst ? null : this.next);
      if (generation === this.generation) {
        this.rows = isFirst ? part.receipts : [...this.rows, ...part.receipts];
        this.next = part.next;
        this.#show();
      }
    } catch (error) {
      if (generation === this.generation) {
        this.status.textContent = `Receipts cannot be read: ${error.message}.`;
      }
    }
  }

  #show() {
    const heads = ["Delivered", "#Late by", "Id", "Target", "Record"];
    this.moreButton.hidden = this.next === null;
    this.status.textContent = this.rows.length
      ? `${this.next ? "The first " : ""}${counted(this.rows.length, "receipt")}, oldest first in each partition; read at ${timeOfDay(now())}.`
      : "";
    this.list.replaceChildren(
      this.rows.length
        ? table(
            "Receipts",
            heads,
            this.rows.map((receipt) => cellsOf(receipt)),
          )
        : note(this.next ? "None so far." : "No receipt matches."),
    );
  }
}

function cellsOf(receipt) {
  const late = receipt.lateness_ms;
  return [
    clock(receipt.delivered_ms),
    late < 0 ? `−${duration(-late)}` : duration(late),
    code(receipt.id),
    code(`${receipt.target}-${receipt.target_partition}`),
    code(receipt.source),
  ];
}
