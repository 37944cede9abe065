// The message of a timer or dead letter: value and headers, or why they are not shown.

import { code, list, muted } from "./cells.js";
import { el, note } from "./dom.js";
import { bytes, count } from "./format.js";

/** Its elements. */
export function messageOf({
  value_bytes: length,
  header_names: names,
  headers,
  header_count: total,
  value,
  value_base64: encoded,
  value_shown_bytes: start,
  decoded,
  decoded_by: schema,
  not_decoded: reason,
}) {
  const size = length === null ? "no value (null)" : `value of ${bytes(length)}`;
  const rest = total === null ? "" : ` … of ${count(total)}`;
  const title = el("h3", "Message");
  if (headers === null) {
    const named = names?.length || rest ? `headers ${names.join(", ")}${rest}` : "no headers";
    return [title, note(`${size}; ${named}. Bodies are hidden: serve.show_bodies shows them.`)];
  }
  const shown = headers.map((header) => [
    code(header.name),
    octets(header.value, header.value_base64, code),
  ]);
  return [
    title,
    el("p.muted", start === null ? size : `${size}, of which the first ${bytes(start)} are shown`),
    ...(decoded === null ? [] : [el("p.muted", `decoded by ${schema}`), block(decoded)]),
    ...(reason === null ? [] : [note(`Not decoded: ${reason}.`)]),
    octets(value, encoded, block),
    el("h3", "Headers"),
    shown.length ? list(shown) : rest ? "" : note("None"),
    rest && note(`${count(shown.length)}${rest} are shown.`),
  ];
}

/** Bytes as text, or in base64 if they are none. */
function octets(text, encoded, how) {
  if (encoded !== null) {
    return el("div", muted("base64 "), how(encoded));
  }
  return text === null ? muted("null") : how(text);
}

const block = (text) => el("pre", { tabindex: 0, role: "region", "aria-label": "Value" }, text);
