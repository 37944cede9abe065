// A form whose fields are parameters of the address: a search can be linked to.

import { check, el, field, input } from "./dom.js";
import { forInput, fromInput } from "./format.js";
import { change, route } from "./route.js";

/** An input for an instant. */
export function timeInput(ms = null) {
  const control = input({
    value: ms === null ? "" : forInput(ms),
    placeholder: "YYYY-MM-DD hh:mm:ss",
    maxlength: 23,
    oninput: () => {
      const isWrong = Number.isNaN(fromInput(control.value));
      control.setCustomValidity(isWrong ? "Give a time as 2026-11-24 07:26:09." : "");
    },
  });
  return control;
}

// How the value of an input is read, by the kind of the field; it is a text without one.
const READ = {
  time: ({ value }) => fromInput(value),
  check: ({ checked }) => (checked ? 1 : null),
  raw: ({ value }) => value, // blanks count
  text: ({ value }) => value.trim(),
};

function inputOf({ kind, maxlength, list }) {
  return kind === "time"
    ? timeInput()
    : input({ type: kind === "check" ? "checkbox" : "text", maxlength, list });
}

/** See the module's head. */
export class SearchForm {
  /**
   * @param {string} name for screen readers
   * @param {Array<object>} fields `name` of the parameter, `label`, `hint`, `kind` as of READ,
   *   `maxlength`, `list`
   * @param {function(): void} search called if the address has another search, and after each submit
   */
  constructor(name, fields, search) {
    Object.assign(this, { search, asked: null });
    this.fields = fields.map((each) => ({ kind: "text", ...each, control: inputOf(each) }));
    const onsubmit = (event) => this.#submit(event);
    const onreset = (event) => this.#reset(event);
    this.element = el(
      "form.search",
      { role: "search", "aria-label": name, onsubmit, onreset },
      this.#controls(),
      el(
        "div.row",
        el("button.main", { type: "submit" }, "Search"),
        el("button", { type: "reset" }, "Clear"),
      ),
    );
  }

  #controls() {
    const shown = [];
    for (const { kind, label, hint, control } of this.fields) {
      if (kind === "check") {
        shown.at(-1).append(check(label, control)); // belongs to the field before
      } else {
        shown.push(field(label, control, hint));
      }
    }
    return shown;
  }

  #submit(event) {
    event.preventDefault();
    const before = this.asked;
    const read = this.fields.map(({ kind, name, control }) => [name, READ[kind](control)]);
    change(Object.fromEntries(read));
    if (this.asked === before) {
      this.search(); // the same search again: the address has not changed
    }
  }

  #reset(event) {
    event.preventDefault();
    change(Object.fromEntries(this.fields.map(({ name }) => [name, null])));
  }

  /** The parameters of the search in the address; "" for those that it does not have. */
  get values() {
    const { parameters } = route();
    return Object.fromEntries(this.fields.map(({ name }) => [name, parameters[name] ?? ""]));
  }

  /** The view is shown, or its address has changed: searches if the search in it has. */
  routed() {
    const { values } = this;
    const asked = JSON.stringify(values);
    if (asked === this.asked) {
      return;
    }
    this.asked = asked;
    for (const { kind, name, control } of this.fields) {
      const value = values[name];
      control.checked = value !== "";
      control.value = kind === "time" && value !== "" ? forInput(Number(value)) : value;
      control.setCustomValidity("");
    }
    this.search();
  }
}
