// A view of a list: its head with buttons, a form to search it, the time of the read, a table that is
// read a page at a time, and a button for more.

import { carryOut } from "./dialogs.js";
import { button, el, head, note, table } from "./dom.js";
import { counted, now, timeOfDay } from "./format.js";
import { SearchForm } from "./search_form.js";

/** A search whose pages follow each other: `read` gets one, with its rows under a name; `says` makes
 * a sentence about it.
 */
export function pages(name, read, says = () => "") {
  const search = {
    page: null,
    isOpen: true,
    more: async () => {
      const found = await read(search.page);
      search.page = found.next ?? null;
      search.isOpen = search.page !== null;
      search.says = says(found);
      return found[name];
    },
  };
  return search;
}

/** See the module's head. */
export class ListView {
  #number = 0; // of the read begun last: only that one has an effect

  /**
   * @param {object} what `title`, `one`: the noun for a row, `heads` as of `table`, `fields` as of
   *   SearchForm, if there is a form; `tools`: buttons; `order` of the rows
   * @param {function(object, boolean): object} what.begin begins a search for the values of the
   *   form, by the page itself if true: `more()` returns the next rows; `isOpen` says that there may
   *   be others, `says` and `moreLabel`, if any, how it goes on
   * @param {function(object): Array} what.cells of a row; the first one opens it
   * @param {function(object): ?string} [what.key] names a row that can be opened; null: it cannot
   * @param {function(object): void} [what.open] opens it
   * @param {function(): (string|Array)} what.empty in place of a table
   */
  constructor(section, what) {
    this.what = { key: () => null, level: "h1", tools: [], order: "", ...what };
    this.search = null;
    this.rows = [];
    this.status = el("p.caption", { role: "status" });
    this.table = el("div.list");
    this.moreButton = button("More", () => this.#more(), { hidden: true });
    const { level, title, fields, tools } = this.what;
    this.form = fields ? new SearchForm(title, fields, () => this.load()) : null;
    section.append(
      head(
        level,
        title,
        button("Refresh", () => this.load()),
        ...tools,
      ),
      ...(this.form ? [this.form.element] : []),
      this.status,
      this.table,
      this.moreButton,
    );
  }

  /** The view is shown, or its address has changed. */
  routed() {
    if (this.form) {
      this.form.routed();
    } else {
      this.load();
    }
  }

  /** Reads it again, and returns the error, if any, which it shows. `quiet`: the old rows are shown
   * until the new ones are read.
   */
  async load(quiet = false) {
    this.search = this.what.begin(this.form?.values ?? {}, quiet);
    if (!quiet) {
      this.rows = [];
      this.table.ariaBusy = "true";
      this.status.textContent = "Reading";
    }
    return this.#read(true);
  }

  async #more() {
    const before = this.rows.length;
    this.status.textContent = "Reading";
    await this.#read(false);
    this.table.querySelectorAll("tbody button")[before]?.focus();
  }

  async #read(isFirst) {
    this.#number += 1;
    const number = this.#number;
    try {
      const found = await this.search.more();
      if (number === this.#number) {
        this.rows = isFirst ? found : [...this.rows, ...found];
        this.#show();
      }
      return null;
    } catch (error) {
      if (number === this.#number) {
        this.table.ariaBusy = null;
        const older = this.rows.length ? " What stands below is older." : "";
        this.status.textContent = `${this.what.title} cannot be read: ${error.message}.${older}`;
      }
      return error;
    }
  }

  /**
   * Changes many rows: counts them, asks, changes them, and shows the outcome.
   * @param {function(): Promise<object>} countRows
   * @param {function(object): ?string} none the text if the count permits no change
   * @param {function(object): object} questionOf as of `ask`
   * @param {function(object): Promise<string>} call
   */
  async changeAll(countRows, none, questionOf, call) {
    const result = el("p");
    let found = null;
    await carryOut(result, null, async () => {
      found = await countRows();
      return none(found) ?? "";
    });
    if (found !== null && none(found) === null) {
      if (!(await carryOut(result, questionOf(found), () => call(found)))) {
        return;
      }
    }
    await this.load();
    this.status.textContent = result.textContent;
  }

  #show() {
    const { title, one, heads, order, empty } = this.what;
    const { isOpen, says = "", moreLabel = "More" } = this.search;
    const focused = document.activeElement?.dataset.row;
    this.table.ariaBusy = null;
    this.moreButton.hidden = !isOpen;
    this.moreButton.textContent = moreLabel;
    this.status.textContent = `${isOpen && this.rows.length ? "The first " : ""}${counted(this.rows.length, one)}${order}; read at ${timeOfDay(now())}.${says}`;
    this.table.replaceChildren(
      this.rows.length
        ? table(
            title,
            heads,
            this.rows.map((row) => this.#cells(row)),
          )
        : note(isOpen ? "None so far." : empty()),
    );
    if (focused !== undefined) {
      this.table.querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus();
    }
  }

  #cells(row) {
    const [first, ...others] = this.what.cells(row);
    const key = this.what.key(row);
    const open = () => this.what.open(row);
    return [
      key === null ? first : button(first, open, { class: "link", "data-row": key }),
      ...others,
    ];
  }
}
