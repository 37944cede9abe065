// Builds elements. Nothing is parsed as markup: ids, keys and messages are only ever text, without
// controls, and the policy of the page (Trusted Types) refuses everything else.

import { printable } from "./format.js";

/**
 * Makes an element: el("p.note.bad", { id: "x" }, "text", another).
 * @param {string} kind its name, and its classes after points
 * @param {...(object|Node|string|number|null)} children null is left out. An object in the first place
 *   has attributes: `on…` are listeners, `style` sets custom properties and sizes; true sets an
 *   attribute without a value; false, null and undefined set none
 */
export function el(kind, ...children) {
  const [name, ...classes] = kind.split(".");
  const element = document.createElement(name);
  element.classList.add(...classes);
  if (children[0]?.constructor === Object) {
    Object.entries(children.shift()).forEach(([key, value]) => set(element, key, value));
  }
  const kept = name === "pre" ? " \n\t" : " ";
  const shown = children.flat().filter((child) => child !== null && child !== undefined);
  element.append(...shown.map((each) => (typeof each === "string" ? printable(each, kept) : each)));
  return element;
}

function set(element, key, value) {
  if (value === false || value === null || value === undefined) {
    return;
  }
  if (key.startsWith("on")) {
    element.addEventListener(key.slice(2), value);
  } else if (key === "style") {
    for (const [property, each] of Object.entries(value)) {
      element.style.setProperty(property, each);
    }
  } else {
    element.setAttribute(key, value === true ? "" : value);
  }
}

export const byId = (id) => document.getElementById(id);

/** A button; `attributes` as for `el`. */
export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

/** An input for text, unless `type` says otherwise. */
export const input = (attributes) =>
  el("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });

/** The head of a view or a part of it, with its buttons. */
export const head = (level, title, ...tools) =>
  el("div.head", el(level, title), el("div.row", tools));

let controls = 0;

/** The label of a control, which gets an id. */
export function labelOf(control, text) {
  control.id ||= `control-${(controls += 1)}`;
  return el("label", { for: control.id }, text);
}

/** A box to tick, and its label. */
export const check = (label, box) => el("span.check", box, labelOf(box, label));

/** A label and its control; `hint` explains it. */
export function field(label, control, hint = null) {
  const made = el("div.field", labelOf(control, label), control);
  if (hint !== null) {
    made.append(el("span.hint", { id: `${control.id}-hint` }, hint));
    control.setAttribute("aria-describedby", `${control.id}-hint`);
  }
  return made;
}

/**
 * A table that becomes a list of cards on a narrow screen. The roles are written out, for `display`
 * would take them away there.
 * @param {string} caption for screen readers
 * @param {string[]} heads of the columns; one that begins with "#" is of numbers
 * @param {Array<Array<Node|string>>} rows
 */
export function table(caption, heads, rows) {
  const names = heads.map((name) => name.replace(/^#/, ""));
  const kinds = heads.map((name) => (name.startsWith("#") ? "number" : null));
  const line = (name, cells) =>
    el(
      "tr",
      { role: "row" },
      cells.map((cell, i) => {
        const role = name === "th" ? "columnheader" : "cell";
        const scope = name === "th" ? "col" : null;
        const label = name === "td" ? names[i] : null;
        return el(name, { role, scope, class: kinds[i], "data-label": label }, cell);
      }),
    );
  return el(
    "table",
    { role: "table" },
    el("caption.unseen", caption),
    el("thead", { role: "rowgroup" }, line("th", names)),
    el(
      "tbody",
      { role: "rowgroup" },
      rows.map((row) => line("td", row)),
    ),
  );
}

/** Says something to screen readers; the same text twice is said twice. */
export function announce(text) {
  byId("announced").textContent = "";
  setTimeout(() => byId("announced").append(text), 50);
}

/** A line about a lack or a failure. */
export const note = (text, kind = "plain") => el(`p.note.${kind}`, text);
