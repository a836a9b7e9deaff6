// The Talk view: the displayed conversation, the composer and the side panels.

import { Conversations } from "./conversations.js";
import { getJson } from "./lib/api.js";
import { askForKey } from "./lib/dialog.js";
import { announce, byId, h } from "./lib/dom.js";
import { cut, plain } from "./lib/text.js";
import { Composer } from "./parts/composer.js";
import { failureView } from "./parts/failure.js";
import { Inspector } from "./parts/inspector.js";
import { Options } from "./parts/options.js";
import { drafts, forgetOldFiles } from "./talk/drafts.js";
import { Follower } from "./talk/follower.js";
import { chainOf } from "./talk/listing.js";
import { CLIENT, OptionValues } from "./talk/options.js";
import { Start } from "./talk/start.js";
import { Thread } from "./talk/thread.js";
import { nextRequest, writtenText } from "./talk/turn.js";
import { outcomeOf } from "./talk/turn_view.js";

const PANELS = { options: "options-button", inspector: "inspect" }; // panels and their buttons
const FRESH = "antiphon.options"; // sessionStorage: options of new conversations
const NEW = "#/talk"; // the address of a new conversation

export class Talk {
  // `onmodel(model)` is called when a conversation opens.
  constructor({ onmodel }) {
    this.onmodel = onmodel;
    this.about = {};
    this.threads = new Set(); // the displayed thread, running threads, and unsaved threads
    this.inspector = new Inspector();
    this.composer = new Composer({
      onsend: () => this.#sendWritten(),
      onpreview: () => this.#preview(),
      onchange: (fields) => this.#keepDraft(fields),
      onrecall: () => this.#editLast(),
    });
    this.options = new Options({
      onchange: (values) => this.#optionsChanged(values),
      onopen: (control) => this.#showOption(control),
    });
    this.fresh = JSON.parse(sessionStorage.getItem(FRESH) ?? "{}");
    this.start = new Start(byId("start"));
    this.list = byId("turns");
    this.follower = new Follower(byId("conversation"), byId("conversation-content"), byId("jump"));
    byId("stop").addEventListener("click", () => this.stop());
    byId("new").addEventListener("click", () => this.begin());
    byId("fork-cancel").addEventListener("click", () => this.#unfork());
    for (const [panel, opener] of Object.entries(PANELS)) {
      byId(opener).addEventListener("click", () =>
        byId("talk").dataset.panel === panel ? this.closePanel() : this.openPanel(panel),
      );
      byId(`${panel}-close`).addEventListener("click", () => this.closePanel());
    }
    this.conversations = new Conversations({
      ondelete: (chain) => chain === chainOf(this.thread.address) && this.begin(),
      locals: () => [...this.threads].filter(({ unsaved, address }) => unsaved && address),
      onrename: () => this.#nameTitle(),
      onlist: (entries) => this.#compareWith(entries),
    });
    addEventListener("beforeunload", (event) => {
      // Background responses survive the page; foreground streams do not.
      if ([...this.threads].some(({ running }) => running && !running.turn.request.background)) event.preventDefault();
      // Keep a question that never reached the server as a draft.
      const { last } = this.thread;
      if (last?.state === "failed" && !last.response && !this.composer.text)
        drafts.set(this.key, { text: writtenText(last.input) });
    });
    this.#display(this.#made());
    forgetOldFiles();
  }

  // Show the view, with the conversation at `address` if there is one. `#/talk` starts a new conversation.
  show(address) {
    this.visible = true;
    this.conversations.show();
    if (address) this.#open(address);
    else if (location.hash === NEW && this.thread.address) this.#display(this.#made());
    else this.#changed(this.thread);
    if (document.activeElement === document.body) this.composer.invite();
  }

  hide() {
    this.visible = false;
    this.conversations.hide();
    this.start.stop();
  }

  // The document title for this view.
  get title() {
    const name = this.conversations?.nameOf(this.thread.address) ?? this.thread.title;
    return name ? `${plain(cut(name.replace(/\s+/g, " "), 60))} – Antiphon studio` : "Antiphon studio";
  }

  // Warn if another page or client has continued the conversation, since the next message would start a branch.
  #compareWith(entries) {
    const { address, running, made, turns } = this.thread;
    const newest =
      turns.length && address && !running ? entries.find(({ id }) => chainOf(id) === chainOf(address)) : null;
    const elsewhere = Boolean(newest && newest.id !== address && !made.has(newest.id));
    byId("elsewhere").hidden = !elsewhere;
    if (elsewhere) byId("elsewhere-show").href = `${NEW}/${newest.id}`;
  }

  #nameTitle() {
    if (this.visible) document.title = this.title;
  }

  // Apply the server's configuration from /v1/antiphon/about.
  offer(about) {
    this.about = about;
    this.options.offer(about);
    this.#restoreOptions();
    this.start.offer(about);
  }

  // Use this model in the examples of the start page.
  listed(model) {
    this.start.name(model);
  }

  // Handle a changed API key. After a refusal, the thread stays and can be retried; threads of another owner are removed.
  async rekey(refused) {
    this.conversations.reset();
    this.conversations.refresh();
    if (refused) return;
    const { thread } = this;
    this.threads = new Set([thread]);
    this.conversations.draw();
    if (thread.turns.length && (thread.unsaved || !(await isReadable(thread.address)))) {
      this.begin();
      this.threads.delete(thread);
    }
  }

  // Begin a new conversation. The previous one stays in the history and in the list.
  begin() {
    if (location.hash !== NEW && this.visible) location.hash = NEW;
    if (this.thread.address || this.thread.turns.length) this.#display(this.#made());
    this.composer.focus();
    const kept = this.options.values.set().map(({ text }) => text);
    announce(kept.length ? `New conversation. It keeps: ${kept.join(", ")}.` : "New conversation.");
  }

  #made() {
    return new Thread(
      {
        retry: (turn, model) => this.#resend(turn, turn.input, model),
        resend: (turn, items) => this.#resend(turn, items),
        goOn: () => this.#sendText("Continue where you stopped."),
        fork: (turn) => this.#fork(turn),
        edited: (turn, text) => turn.response && drafts.setEdit(this.key, turn.response.id, text),
        inspect: (turn) => this.#inspect(turn),
        output: (turn, call, output) => this.#giveOutput(turn, call, output),
        approve: (_, request, approve) =>
          this.#answer([{ type: "mcp_approval_response", approval_request_id: request.id, approve }]),
        branch: (turn, step) => this.#showBranch(turn, step),
        raise: () => this.#showOption(byId("max_output_tokens")),
        models: () =>
          [...byId("model").options].map(({ value }) => value).filter((model) => model !== byId("model").value),
      },
      {
        changed: (thread) => this.#changed(thread),
        painted: (turn) => this.inspector.update(turn),
        ended: (turn) => this.#ended(turn),
        refused: (error) => askForKey(error),
      },
    );
  }

  // Display a thread. The previous thread stays in memory while it runs, or if the server does not store it.
  #display(thread) {
    if (this.thread && !this.thread.running && !this.thread.unsaved) this.threads.delete(this.thread);
    this.thread = thread;
    this.threads.add(thread);
    this.key = keyOf(thread);
    this.list.replaceChildren(thread.list);
    this.#complain("");
    byId("elsewhere").hidden = true;
    this.#restoreOptions();
    const draft = drafts.get(this.key);
    this.composer.set({ text: draft.text });
    if (draft.files) this.#restoreFiles(this.key);
    this.inspector.show(thread.last ?? null);
    this.follower.pin();
    this.#changed(thread);
  }

  async #restoreFiles(key) {
    const files = await drafts.files(key);
    if (key === this.key && !this.composer.files.length) this.composer.set({ text: this.composer.text, files });
  }

  // Reopen edits that were not sent.
  #restoreEdits(thread) {
    const edits = drafts.get(keyOf(thread)).edits ?? {};
    for (const turn of thread.turns) {
      const text = edits[turn.response?.id];
      if (text !== undefined) thread.view(turn).edit(text);
    }
  }

  // Restore the conversation's options: unsent changes first, else the options of its last request.
  #restoreOptions() {
    const { thread } = this;
    const changed = drafts.get(keyOf(thread)).options;
    const { last } = thread;
    const values =
      changed || !last
        ? new OptionValues(changed ?? this.fresh, this.about)
        : OptionValues.from(last.request, this.about);
    if (last) values.fields.background = this.options.values.fields.background; // delivery is a setting of the page
    this.options.show(values);
    this.#tellKept();
  }

  #optionsChanged(values) {
    if (this.thread.turns.length) {
      drafts.set(this.key, { options: values.state() });
    } else {
      this.fresh = values.state();
      sessionStorage.setItem(FRESH, JSON.stringify(this.fresh));
    }
    this.#tellKept();
  }

  #tellKept() {
    const kept = this.options.values.set().map(({ text }) => text);
    byId("welcome-kept").hidden = !kept.length;
    byId("welcome-kept-names").textContent = kept.join(", ");
  }

  #keepDraft({ text, files }) {
    if (text !== undefined) drafts.set(this.key, { text });
    if (files) drafts.setFiles(this.key, files);
  }

  // Update the page after a thread's address or state has changed.
  #changed(thread) {
    if (thread !== this.thread) {
      if (!thread.running && !thread.unsaved) this.threads.delete(thread);
      this.conversations.draw();
      return;
    }
    const key = keyOf(thread);
    if (key !== this.key) {
      drafts.move(this.key, key);
      this.key = key;
      this.conversations.refresh();
    }
    const isStart = !thread.turns.length && !thread.address;
    byId("welcome").hidden = !isStart;
    if (isStart) {
      this.follower.release();
      byId("conversation").scrollTop = 0;
    }
    if (isStart && this.visible) this.start.start();
    else this.start.stop();
    byId("fork-note").hidden = !thread.cutOff.length;
    this.#busy(Boolean(thread.running));
    this.#writeAddress();
    this.conversations.mark(thread.address);
    this.#nameTitle();
  }

  // Write the conversation's address to the location bar and the navigation.
  #writeAddress() {
    const { address } = this.thread;
    const hash = address ? `${NEW}/${address}` : NEW;
    document.querySelector('#nav [data-view="talk"]').setAttribute("href", hash);
    const isStart = !address && ["", "#/"].includes(location.hash);
    if (this.visible && !isStart && location.hash !== hash) history.replaceState(null, "", hash);
  }

  async #open(address) {
    if (address === this.thread.address) return;
    const known = [...this.threads].find((thread) => thread.address === address);
    if (known) {
      this.#display(known);
      return;
    }
    const thread = this.#made();
    thread.address = address;
    this.#display(thread);
    this.follower.pin();
    byId("welcome").hidden = true;
    this.list.replaceChildren(h("p", { class: "note pulse" }, "Opening the conversation…"));
    try {
      if (address.startsWith("local-")) throw new Error("This conversation was not stored, and ended with its page.");
      const { data, forks } = await getJson(`antiphon/responses/${encodeURIComponent(address)}/chain`);
      if (thread !== this.thread) return;
      this.list.replaceChildren(thread.list);
      const built = thread.restore({ data, forks });
      this.#restoreOptions();
      this.onmodel(thread.last.response.model);
      this.inspector.show(thread.last);
      this.#changed(thread);
      this.follower.pin();
      thread.resume();
      this.composer.invite();
      await built;
      this.#restoreEdits(thread);
    } catch (error) {
      if (thread !== this.thread) return;
      askForKey(error);
      const gone = error.status === 404;
      this.list.replaceChildren(
        h(
          "div",
          { class: "missing" },
          h("h2", {}, "This conversation cannot be opened"),
          gone ? h("p", {}, "It no longer exists, or belongs to another key.") : failureView(error),
        ),
      );
    }
  }

  // Open a side panel; the other one closes.
  openPanel(panel) {
    this.#setPanel(panel);
    byId(`${panel}-title`).focus({ preventScroll: true });
  }

  closePanel() {
    const opener = PANELS[byId("talk").dataset.panel];
    if (!opener) return;
    this.#setPanel("");
    byId(opener).focus({ preventScroll: true });
  }

  #setPanel(panel) {
    byId("talk").dataset.panel = panel;
    for (const [each, opener] of Object.entries(PANELS)) byId(opener).setAttribute("aria-expanded", each === panel);
    this.inspector.reveal(panel === "inspector");
  }

  #showOption(control) {
    this.#setPanel("options");
    control?.focus();
  }

  #inspect(turn) {
    this.inspector.show(turn);
    this.openPanel("inspector");
  }

  stop() {
    return this.thread.stop();
  }

  /** Stop the answer, else close the panel. Returns false if neither applies. */
  escape() {
    if (this.thread.running) this.stop();
    else if (byId("talk").dataset.panel) this.closePanel();
    else return false;
    return true;
  }

  // Run a suggestion: merge its parameters into the displayed options and send its prompt.
  try({ prompt, parameters = {} }) {
    this.#attempt(() => {
      this.options.show(OptionValues.from({ ...this.options.values.request(), ...parameters }, this.about));
      this.#sendText(prompt);
    });
  }

  #sendText(text) {
    this.#sendItems([{ type: "message", role: "user", content: [{ type: "input_text", text }] }]);
  }

  #sendWritten() {
    if (this.thread.running) return;
    const items = this.composer.items();
    if (!items.length) {
      this.#complain("Write a message first.");
      return;
    }
    if (this.#sendItems(items)) this.composer.clear();
  }

  #sendItems(items, change = (parameters) => parameters) {
    return this.#attempt(() => {
      const request = this.#continued(this.thread.turns, change(this.#parameters()), items);
      this.#run(request, items);
    });
  }

  // Send results of calls or approvals. `tool_choice` is omitted: a required tool would be called in an endless loop.
  #answer(items) {
    this.#sendItems(items, ({ tool_choice: _, ...parameters }) => parameters);
  }

  #giveOutput(turn, call, output) {
    const items = turn.give(call, output);
    if (items) this.#answer(items);
    else announce(`${turn.calls.length - turn.outputs.length} more needed.`);
  }

  // Send a turn's input again, with the displayed model and options.
  #resend(turn, items, model) {
    if (this.#isBusy()) return false;
    return this.#attempt(() => {
      const { turns } = this.thread;
      const parameters = { ...this.#parameters(), ...(model ? { model } : {}) };
      const request = this.#continued(turns.slice(0, turns.indexOf(turn)), parameters, items);
      this.thread.unfork();
      this.#run(request, items, this.thread.cutFrom(turn));
      this.composer.invite();
    });
  }

  #run(request, items, replaced) {
    drafts.set(this.key, { options: null });
    this.follower.pin();
    this.thread.run(request, items, replaced);
    this.inspector.show(this.thread.last);
    announce("Message sent.");
  }

  #parameters() {
    const parameters = this.options.parameters();
    return { ...parameters, metadata: { ...CLIENT, ...parameters.metadata } };
  }

  #continued(turns, parameters, items) {
    return nextRequest(turns, parameters, items);
  }

  #attempt(work) {
    this.#complain("");
    try {
      work();
      return true;
    } catch (error) {
      this.#complain(error.message);
      return false;
    }
  }

  #preview() {
    this.#attempt(() => {
      const request = this.#continued(this.thread.turns, this.#parameters(), this.composer.items());
      this.inspector.preview(request);
      this.openPanel("inspector");
    });
  }

  #ended(turn) {
    this.conversations.refresh();
    if (turn === this.thread.last) announce(outcomeOf(turn));
    this.inspector.update(turn);
  }

  #editLast() {
    const turn = this.thread.turns.findLast((each) => each.editable);
    if (turn && !this.#isBusy()) this.thread.view(turn).edit();
  }

  #fork(turn) {
    if (this.#isBusy()) return;
    this.thread.fork(turn);
    byId("fork-note-text").textContent = `Your next message begins a new branch after turn ${turn.number}.`;
    this.inspector.show(turn);
    this.composer.focus();
    announce(byId("fork-note-text").textContent);
  }

  #unfork() {
    this.thread.unfork();
    this.#changed(this.thread);
    this.composer.focus();
  }

  #showBranch(turn, step) {
    if (this.#isBusy()) return;
    const id = this.thread.showBranch(turn, step);
    if (id && turn === this.thread.turns[0]) location.hash = `${NEW}/${this.conversations.newestOf(id)}`;
    else if (id) location.hash = `${NEW}/${id}`;
    else this.#changed(this.thread);
  }

  #isBusy() {
    if (this.thread.running) announce("Wait for the answer, or stop it first.");
    return Boolean(this.thread.running);
  }

  #busy(busy) {
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    if (!busy && document.activeElement === byId("stop")) this.composer.focus();
  }

  #complain(message) {
    byId("composer-problem").textContent = message;
  }
}

// The draft's key. Each answer changes the address, but its last 24 characters stay the same.
const keyOf = ({ address }) => (address.startsWith("resp_") ? chainOf(address) : address || "new");

async function isReadable(id) {
  try {
    await getJson(`responses/${encodeURIComponent(id)}`);
    return true;
  } catch (error) {
    return ![401, 403, 404].includes(error.status);
  }
}
