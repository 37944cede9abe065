// A list that is in Kafka only: it is read a page at a time, when its view is opened or asked, not
// again and again.

import { button, el, note, table } from "./dom.js";
import { counted, now, timeOfDay } from "./format.js";
import { LatestRead } from "./latest_read.js";

/** See the module's head. */
export class PagedList {
  /**
   * @param {string} title of the table
   * @param {string} one what a row is
   * @param {string[]} heads as of `table`
   * @param {{read: Function, cells: Function, empty: Function}} how `read` returns the rows of a
   *   page and `next`, the page behind it (null: the first, and none); `cells` those of a row;
   *   `empty` the text in place of a table
   */
  constructor(title, one, heads, { read, cells, empty }) {
    Object.assign(this, { title, one, heads, read, cells, empty });
    this.reads = new LatestRead();
    this.rows = [];
    this.next = null;
    this.status = el("p", { class: "caption", role: "status" });
    this.list = el("div", { class: "list" });
    this.moreButton = button("More", () => this.#load(this.next));
    this.moreButton.hidden = true;
  }

  /** Its elements, in their order. */
  get elements() {
    return [this.status, this.list, this.moreButton];
  }

  /** Reads it anew. */
  async load() {
    await this.#load(null);
  }

  async #load(page) {
    this.status.textContent = "Reading from Kafka";
    await this.reads.run(
      () => this.read(page),
      ({ rows, next }) => {
        this.rows = page === null ? rows : [...this.rows, ...rows];
        this.next = next;
        this.#show();
      },
      (error) => {
        this.status.textContent = `${this.title} cannot be read: ${error.message}.`;
      },
    );
  }

  #show() {
    this.moreButton.hidden = this.next === null;
    this.status.textContent = this.rows.length
      ? `${this.next ? "The first " : ""}${counted(this.rows.length, this.one)}, oldest first in each partition; read at ${timeOfDay(now())}.`
      : "";
    this.list.replaceChildren(
      this.rows.length
        ? table(
            this.title,
            this.heads,
            this.rows.map((row) => this.cells(row)),
          )
        : note(this.next ? "None so far." : this.empty()),
    );
  }
}
