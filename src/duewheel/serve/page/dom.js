// Builds elements. Nothing is parsed as markup: ids, keys and messages are only ever text, and the
// policy of the page (Trusted Types) refuses everything else.

/**
 * Makes an element.
 * @param {string} name of the element
 * @param {object} attributes `on…` are listeners, `style` sets custom properties and sizes; true
 *   sets an attribute without a value; false, null and undefined set none
 * @param {...(Node|string|number|null)} children null is left out
 */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    set(element, key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
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

let controls = 0;

/** A label and its control, which gets an id; `hint` explains it. */
export function field(label, control, hint = null) {
  control.id ||= `control-${(controls += 1)}`;
  const explained =
    hint === null ? null : el("span", { class: "hint", id: `${control.id}-hint` }, hint);
  if (explained) {
    control.setAttribute("aria-describedby", explained.id);
  }
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control, explained);
}

/**
 * A table that becomes a list of cards on a narrow screen. The roles are written out, for `display`
 * would take them away there.
 * @param {string} caption for screen readers
 * @param {string[]} heads of the columns; one that begins with "#" is of numbers
 * @param {Array<Array<Node|string>>} rows
 */
export function table(caption, heads, rows) {
  const names = heads.map((head) => head.replace(/^#/, ""));
  const numeric = heads.map((head) => (head.startsWith("#") ? "number" : null));
  return el(
    "table",
    { role: "table" },
    el("caption", { class: "unseen" }, caption),
    el(
      "thead",
      { role: "rowgroup" },
      el(
        "tr",
        { role: "row" },
        names.map((name, i) =>
          el("th", { role: "columnheader", scope: "col", class: numeric[i] }, name),
        ),
      ),
    ),
    el(
      "tbody",
      { role: "rowgroup" },
      rows.map((row) =>
        el(
          "tr",
          { role: "row" },
          row.map((cell, i) =>
            el("td", { role: "cell", "data-label": names[i], class: numeric[i] }, cell),
          ),
        ),
      ),
    ),
  );
}

/** Says something to screen readers; the same text twice is said twice. */
export function announce(text) {
  const region = byId("announced");
  region.textContent = "";
  setTimeout(() => {
    region.textContent = text;
  }, 50);
}

/** Shows a `note`: a line about what is missing, or has failed. */
export function note(text, kind = "plain", ...more) {
  return el("p", { class: `note ${kind}` }, text, ...more);
}
