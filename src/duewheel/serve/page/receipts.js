// Receipts of delivered timers.

import { code } from "./cells.js";
import { button, el, field } from "./dom.js";
import { duration, forInput, fromInput, now } from "./format.js";
import { receipts } from "./operations.js";
import { PagedList } from "./paged_list.js";
import { change, route } from "./route.js";
import { clock } from "./times.js";

const HOUR_MS = 3_600_000;
const HEADS = ["Delivered", "#Late by", "Id", "Target", "Record"];

/** See the module's head. */
export class Receipts {
  constructor(section) {
    this.asked = null; // the parameters of the search that is shown
    this.list = new PagedList("Receipts", "receipt", HEADS, {
      read: (page) => this.#read(page),
      cells: cellsOf,
      empty: () => "No receipt matches.",
    });
    section.append(
      el(
        "div",
        { class: "head" },
        el("h1", {}, "Receipts"),
        el(
          "div",
          { class: "row" },
          button("Refresh", () => this.list.load()),
        ),
      ),
      this.#form(),
      ...this.list.elements,
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
        this.list.load(); // the same search again: the address has not changed
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
      this.list.load();
    }
  }

  // Without an id the topic's first receipts would come, days old.
  get #wanted() {
    const { id, target, from, to } = route().parameters;
    return { id, target, from: from || id ? from : now() - HOUR_MS, to };
  }

  async #read(page) {
    this.wanted = page === null ? this.#wanted : this.wanted;
    const { receipts: rows, next } = await receipts(this.wanted, page);
    return { rows, next };
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
