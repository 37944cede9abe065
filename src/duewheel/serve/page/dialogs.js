// Dialogs: a question with its consequences, and the question for the token. <dialog> keeps the
// focus inside, closes with Escape, and gives the focus back.

import { button, el, field, input, note } from "./dom.js";
import { printable } from "./format.js";

let dialogs = 0;

/**
 * Opens an empty dialog.
 * @param {string} title its name
 * @param {string} kind a class: "ask" or "side"
 * @returns {HTMLDialogElement} with `body`, to be filled; it is removed once it is closed
 */
export function open(title, kind) {
  const id = `dialog-${(dialogs += 1)}`;
  const body = el("div.dialog-body");
  const dialog = el(
    "dialog",
    { class: kind, "aria-labelledby": id },
    el(
      "header",
      el("h2", { id }, title),
      button("Close", () => dialog.close(), { class: "quiet" }),
    ),
    body,
  );
  dialog.body = body;
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * Asks a question with its consequences.
 * @param {object} question
 * @param {string} question.title the question
 * @param {Array<Node|string>} question.says consequences, a paragraph each
 * @param {string} question.action the label of the button that agrees
 * @param {string} [question.decline] the label of the other one
 * @param {boolean} [question.grave] whether it cannot be undone
 * @param {Node[]} [question.fields] controls between the two
 * @param {function(): ?string} [question.check] returns the fault in them
 * @returns {Promise<boolean>} whether the person agrees
 */
export function ask({
  title,
  says,
  action,
  decline = "Do nothing",
  grave = false,
  fields = [],
  check,
}) {
  return new Promise((resolve) => {
    const dialog = open(title, "ask");
    const wrong = el("p.note.bad", { role: "alert" });
    let agreed = false;
    function submit(event) {
      event.preventDefault();
      wrong.textContent = check?.() ?? "";
      if (wrong.textContent === "") {
        agreed = true;
        dialog.close();
      }
    }
    const declining = button(decline, () => dialog.close());
    dialog.body.append(
      el(
        "form",
        { onsubmit: submit, novalidate: true },
        says.map((each) => (typeof each === "string" ? el("p", each) : each)),
        fields,
        wrong,
        el(
          "div.row.end",
          declining,
          el("button", { type: "submit", class: grave ? "grave" : "main" }, action),
        ),
      ),
    );
    // A grave change is not one Return away.
    (
      dialog.querySelector("input, select") ??
      (grave ? declining : dialog.querySelector("[type=submit]"))
    ).focus();
    dialog.addEventListener("close", () => resolve(agreed));
  });
}

/**
 * Makes a change, and shows its outcome in an element with the role "status".
 * @param {HTMLElement} result
 * @param {?object} question as of `ask`; null: it needs none
 * @param {function(): Promise<string>} call makes the change, and returns its outcome
 * @returns {Promise<boolean>} whether the person agreed
 */
export async function carryOut(result, question, call) {
  if (question !== null && !(await ask(question))) {
    return false;
  }
  try {
    result.textContent = printable(await call());
  } catch (error) {
    const { status, message } = error; // 504: the message says how much may be written
    result.textContent = `${status === 504 ? "" : "Nothing is known to have changed: "}${message}.`;
  }
  return true;
}

/**
 * Fills a part of a dialog with the result of a read.
 * @param {function(): Promise} read
 * @param {function(*): Node[]} show
 * @param {function(Error): string} failed the text in its place
 */
export async function fill(
  part,
  read,
  show,
  failed = ({ message }) => `It cannot be read: ${message}.`,
) {
  part.replaceChildren(note("Reading"));
  try {
    part.replaceChildren(...show(await read()));
  } catch (error) {
    part.replaceChildren(note(failed(error), "bad"));
  }
}

let asking = null;

/** Asks for a token, once for all that wait for it. Returns null if there is none. */
export function askForToken(reason) {
  asking ??= askOnce(reason).finally(() => {
    asking = null;
  });
  return asking;
}

async function askOnce(reason) {
  const token = input({ type: "password" });
  const agreed = await ask({
    title: "Token",
    says: [
      reason,
      "The page keeps it in memory only: a reload, or Forget the token, forgets it. It is sent to this API and nowhere else.",
    ],
    fields: [
      field("Token", token, "one of serve.token_file; for reads also of serve.read_token_file"),
    ],
    check: () => (token.value.trim() ? null : "Give a token."),
    action: "Use the token",
    decline: "Go on without",
  });
  return agreed ? token.value.trim() : null;
}
