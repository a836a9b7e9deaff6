// The conversations of one's key, beside the thread: found, opened, deleted.

import { getJson, send } from "./lib/api.js";
import { confirmed } from "./lib/dialog.js";
import { announce, button, byId, h, icon } from "./lib/dom.js";
import { ago, cut, plain } from "./lib/text.js";

const PAGE = 30;
const EVERY = 10_000; // ms between two looks at the list
const RUNNING = new Set(["queued", "in_progress"]);

// What the ids of one conversation have in common: the key of their chain, at their end.
export const chainOf = (id) => id?.slice(-24) ?? "";

export class Conversations {
  // `ondelete` is called with the key of a chain that is not there any more.
  constructor({ ondelete }) {
    this.ondelete = ondelete;
    this.entries = [];
    this.current = ""; // the key of the chain that is open
    this.asked = 0;
    this.list = byId("conversation-list");
    this.field = byId("conversation-search");
    this.field.addEventListener("input", () => this.#read());
    byId("conversations-more").addEventListener("click", () => this.#more());
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
  }

  show() {
    byId("conversations").hidden = false;
    clearInterval(this.timer);
    this.timer = setInterval(() => this.refresh(), EVERY);
    this.refresh();
  }

  hide() {
    byId("conversations").hidden = true;
    clearInterval(this.timer);
  }

  reset() {
    this.entries = [];
    this.field.value = "";
    this.#draw(false);
  }

  // The conversation of this response is the one that is open.
  mark(id) {
    this.current = chainOf(id);
    for (const link of this.list.querySelectorAll("a")) {
      if (link.dataset.chain === this.current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  refresh() {
    if (byId("conversations").hidden || document.hidden) return;
    // As many as are shown, so that what was shown stays.
    this.#read(Math.min(100, Math.max(PAGE, this.entries.length)), true);
  }

  async #read(limit = PAGE, quietly = false) {
    const asked = ++this.asked;
    const text = this.field.value.trim();
    try {
      const page = await getJson(`antiphon/chains?limit=${limit}&text=${encodeURIComponent(text)}`);
      if (asked !== this.asked) return;
      const known = new Set(page.data.map(({ id }) => chainOf(id)));
      const rest = quietly ? this.entries.slice(limit).filter(({ id }) => !known.has(chainOf(id))) : [];
      this.entries = [...page.data, ...rest];
      this.#draw(page.has_more);
      if (!quietly) announce(`${page.data.length}${page.has_more ? " or more" : ""} conversations.`);
    } catch (error) {
      if (asked === this.asked && !quietly) announce(error.message);
    }
  }

  async #more() {
    const asked = ++this.asked;
    const text = this.field.value.trim();
    try {
      const page = await getJson(
        `antiphon/chains?limit=${PAGE}&text=${encodeURIComponent(text)}&after=${this.entries.at(-1).id}`,
      );
      if (asked !== this.asked) return;
      const first = page.data[0];
      this.entries.push(...page.data);
      this.#draw(page.has_more);
      if (first) this.list.querySelector(`[data-chain="${chainOf(first.id)}"]`)?.focus();
    } catch {
      // The one to go on from may have been continued meanwhile, and have another id.
      if (asked === this.asked) this.#read();
    }
  }

  #draw(more) {
    const wanted = this.field.value.trim();
    byId("conversations-empty").hidden = this.entries.length > 0;
    byId("conversations-empty").textContent = wanted
      ? "No conversation has this text."
      : "What you and your clients talk about appears here.";
    byId("conversations-more").hidden = !more;
    const text = JSON.stringify([this.entries, this.current]);
    if (text === this.drawn) return;
    this.drawn = text;
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const [chain, isLink] = [focused?.closest("li").dataset.chain, focused?.tagName === "A"];
    this.list.replaceChildren(...this.entries.map((entry) => this.#row(entry)));
    if (chain)
      this.list.querySelector(`li[data-chain="${chain}"] ${isLink ? "a" : "button"}`)?.focus({ preventScroll: true });
    this.mark(this.current);
  }

  #row(entry) {
    const key = chainOf(entry.id);
    const title = plain(cut(entry.title || "(no text)", 120));
    return h(
      "li",
      { "data-chain": key },
      h(
        "a",
        { href: `#/talk/${entry.id}`, "data-chain": key, title },
        h("span", { class: "conversation-title" }, title),
        h(
          "span",
          { class: "conversation-meta" },
          h("span", {}, ago(entry.updated_at)),
          h("span", { class: "conversation-model" }, plain(entry.model)),
          RUNNING.has(entry.status)
            ? h("span", { class: "chip working" }, "running")
            : entry.status === "failed"
              ? h("span", { class: "chip failed" }, "failed")
              : null,
        ),
      ),
      button(icon("trash-2"), () => this.#delete(entry), {
        class: "quiet only",
        "aria-label": `Delete the conversation “${cut(title, 40)}”`,
      }),
    );
  }

  async #delete(entry) {
    const title = plain(cut(entry.title || "(no text)", 60));
    if (
      !(await confirmed({
        title: "Delete this conversation?",
        text: `“${title}”, with all of its answers and branches.`,
        verb: "Delete",
      }))
    )
      return;
    try {
      const { data, forks } = await getJson(`antiphon/responses/${entry.id}/chain`);
      const made = [...data.map(({ response }) => response), ...forks].sort(
        (one, other) => other.created_at - one.created_at,
      );
      for (const { id } of made) {
        await send("DELETE", `responses/${id}`).catch((error) => {
          if (error.status !== 404) throw error; // it is gone already
        });
      }
      announce("Deleted.");
      this.entries = this.entries.filter(({ id }) => id !== entry.id);
      this.#draw(!byId("conversations-more").hidden);
      this.field.focus();
      this.ondelete(chainOf(entry.id));
    } catch (error) {
      announce(error.message);
    }
    this.refresh();
  }
}
