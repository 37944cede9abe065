// Receipts of delivered timers.

import { clock, code } from "./cells.js";
import { duration, HOUR, now } from "./format.js";
import { ListView, pages } from "./list_view.js";
import { receipts } from "./operations.js";

/** The view. */
export const receiptsView = (section) =>
  new ListView(section, {
    title: "Receipts",
    one: "receipt",
    order: ", oldest first in each partition",
    heads: ["Delivered", "#Late by", "Id", "Target", "Record"],
    fields: [
      { name: "id", label: "Id", maxlength: 504 },
      { name: "target", label: "Target", maxlength: 249, list: "targets" },
      {
        name: "from",
        label: "Delivered from",
        kind: "time",
        hint: "empty, without an id: the last hour",
      },
      { name: "to", label: "Delivered before", kind: "time" },
    ],
    begin: ({ from, ...others }) => {
      // Without an id the topic's first receipts would come, days old.
      const wanted = { ...others, from: from || (others.id ? "" : now() - HOUR) };
      return pages("receipts", (page) => receipts(wanted, page));
    },
    cells: ({ lateness_ms: late, ...receipt }) => [
      clock(receipt.delivered_ms),
      late < 0 ? `−${duration(-late)}` : duration(late),
      code(receipt.id),
      code(`${receipt.target}-${receipt.target_partition}`),
      code(receipt.source),
    ],
    empty: () => "No receipt matches.",
  });
