// The items of a response that grows.

import { h } from "../lib/dom.js";
import { itemView } from "./items.js";

export class AnswerView {
  // `acts` has what the buttons of items do, and how calls were answered: see `itemView`.
  constructor(acts = {}) {
    this.acts = acts;
    this.views = [];
    this.node = h("div", { class: "answer" });
  }

  // Draw what has changed of a `LiveResponse`.
  draw(live) {
    live.items.forEach((entry, index) => {
      if (!entry?.changed) return;
      const before = this.views[index];
      if (before?.type !== entry.item.type) {
        const view = itemView(entry.item, this.acts);
        this.views[index] = { view, type: entry.item.type };
        if (before) before.view.node.replaceWith(view.node);
        else this.node.append(view.node);
      }
      this.views[index].view.draw(entry);
      entry.changed = false;
    });
  }
}

// The text of a response, without what is between its messages.
export function textOf(response) {
  return response.output
    .flatMap((item) => item.content ?? [])
    .map((part) => part.text ?? part.refusal ?? "")
    .filter(Boolean)
    .join("\n\n");
}
