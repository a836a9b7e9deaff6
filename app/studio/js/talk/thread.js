// A conversation: its turns and their views, the running response, and branches.

import { ApiError, getJson, send, stream } from "../lib/api.js";
import { h, schedule } from "../lib/dom.js";
import { LiveResponse } from "../lib/live.js";
import { EventLog } from "../lib/log.js";
import { recorded, requestOf } from "../lib/stored.js";
import { newestFrom, siblings } from "./branches.js";
import { BRANCH_OF, CLIENT } from "./options.js";
import { Turn, writtenText } from "./turn.js";
import { TurnView } from "./turn_view.js";

const RESUMES = 60; // reconnection attempts for a background response
const LONGEST_PAUSE = 10_000; // ms between attempts
const SLICE = 8; // ms of building turns before yielding to the browser

export class Thread {
  /**
   * @param {any} acts callbacks of turn controls: see `TurnView`
   * @param {any} on changed(thread): its address or state; painted(turn); ended(turn); refused(error)
   */
  constructor(acts, on) {
    this.acts = acts;
    this.on = on;
    this.address = ""; // id of its last stored response; "local-1" if nothing is stored
    this.turns = [];
    this.made = new Set(); // ids of all known responses of this conversation
    this.forks = []; // list entries of responses on other branches
    this.roots = []; // {id, created_at} of the first turn and its siblings, which are conversations of their own
    this.views = new Map();
    this.running = null; // {turn, id, abort}
    this.cutOff = []; // turns hidden by `fork`
    this.list = h("div", { class: "turns" });
  }

  get last() {
    return this.turns.at(-1);
  }

  /** The text of the first message. */
  get title() {
    return this.turns.length ? writtenText(this.turns[0].input) : "";
  }

  /** Whether the turns exist only in this page. */
  get unsaved() {
    return this.turns.length > 0 && !this.address.startsWith("resp_");
  }

  view(turn) {
    return this.views.get(turn);
  }

  /** Build the views of stored turns, newest first, so that the end of a long conversation is readable at once. */
  async restore({ data, forks = [] }) {
    this.forks = forks;
    this.address = data.at(-1).response.id;
    this.turns = data.map((stored) => Turn.stored(stored, requestOf(stored)));
    for (const { id } of [...data.map(({ response }) => response), ...forks]) this.made.add(id);
    this.#number();
    let began = performance.now();
    for (const turn of this.turns.toReversed()) {
      if (performance.now() - began > SLICE) {
        await new Promise((done) => setTimeout(done));
        began = performance.now();
      }
      if (!this.turns.includes(turn)) return; // removed meanwhile
      this.list.prepend(this.#made(turn).node);
      if (!turn.running) this.#settle(turn);
    }
    await this.#findRoots();
  }

  // Find the siblings of the first turn by the metadata of their requests.
  async #findRoots() {
    const [first] = this.turns;
    const isOurs = Object.entries(CLIENT).every(([name, value]) => first?.response.metadata?.[name] === value);
    if (!isOurs) return;
    const root = rootOf(first);
    const query = new URLSearchParams([
      ["limit", "100"],
      [`metadata[${BRANCH_OF}]`, root],
    ]);
    const { data } = await getJson(`antiphon/responses?${query}`).catch(() => ({ data: [] }));
    const others = data.filter(({ status }) => status !== "failed");
    if (!others.length || first !== this.turns[0]) return;
    this.roots = [{ id: root, created_at: 0 }, ...others.reverse()];
    if (!first.running) this.#settle(first);
  }

  /** Stream the last turn if it is still running. */
  resume() {
    const { last } = this;
    if (!last?.running || this.running) return;
    const { id } = last.response;
    last.live = new LiveResponse();
    this.#attend(last, id, (signal) => stream(`responses/${id}?stream=true`, { signal }));
  }

  /** Send a request as a new turn. `input` excludes repeated history; `replaced` becomes another branch. */
  run(request, input, replaced = this.cutOff) {
    this.cutOff = [];
    const [first] = this.turns.length ? [] : replaced;
    if (first?.stored) {
      const root = rootOf(first);
      request.metadata = { ...request.metadata, [BRANCH_OF]: root };
      if (!this.roots.length) this.roots = [{ id: root, created_at: 0 }];
    }
    const turn = new Turn(request, input);
    turn.others = othersOf(replaced);
    this.turns.push(turn);
    this.#number();
    const before = this.turns.at(-2);
    this.list.append(this.#made(turn).node);
    if (before) this.#settle(before);
    return this.#attend(turn, null, (signal) => stream("responses", { method: "POST", body: request, signal }));
  }

  /** Remove a turn and its successors; returns them. */
  cutFrom(turn) {
    const index = this.turns.indexOf(turn);
    if (index < 0) return [];
    const taken = this.turns.splice(index);
    for (const each of taken) this.views.get(each)?.node.remove();
    this.#readdress();
    if (this.last) this.#settle(this.last);
    return taken;
  }

  /** Hide a turn's successors until the next message starts a branch or `unfork` restores them. */
  fork(turn) {
    this.unfork();
    const next = this.turns[this.turns.indexOf(turn) + 1];
    if (next) this.cutOff = this.cutFrom(next);
    this.on.changed(this);
  }

  unfork() {
    const hidden = this.cutOff;
    this.cutOff = [];
    this.#append(hidden);
  }

  #append(turns) {
    if (!turns.length) return;
    const before = this.last;
    this.turns.push(...turns);
    this.#number();
    this.list.append(...turns.map((turn) => this.#made(turn).node));
    for (const turn of [before, ...turns]) if (turn) this.#settle(turn);
    this.#readdress();
  }

  #readdress() {
    const stored = this.turns.findLast((turn) => turn.stored);
    if (stored) this.address = stored.response.id;
    else if (!this.address.startsWith("local-")) this.address = this.turns.length ? localAddress() : "";
    this.on.changed(this);
  }

  /** Cancel a background response, or abort a foreground stream. */
  async stop() {
    const { running } = this;
    if (!running) return;
    running.turn.stopped = true;
    this.views.get(running.turn).wait("Stopping…");
    // A cancelled background response ends its own stream.
    if (running.id) await send("POST", `responses/${running.id}/cancel`, {}).catch(() => running.abort.abort());
    else running.abort.abort();
  }

  // Stream a turn's answer, opened by `ask(signal)`. `id` is the id of a running background response, else null.
  async #attend(turn, id, ask) {
    const running = { turn, id, abort: new AbortController() };
    this.running = running;
    turn.running = true;
    turn.log = new EventLog();
    if (!turn.request.background && !this.address) this.address = localAddress();
    const view = this.views.get(turn);
    this.on.changed(this);
    try {
      const answer = await ask(running.abort.signal);
      turn.warnings = answer.warnings;
      turn.requestId = answer.requestId;
      if (answer.response) turn.live = LiveResponse.of(answer.response);
      view.resumed();
      await this.#read(running, answer.batches);
    } catch (error) {
      await this.#failed(running, error);
    }
    this.running = null;
    turn.running = false;
    turn.log.end();
    if (turn.response) this.made.add(turn.response.id);
    if (turn.response?.status === "cancelled") turn.stopped = true;
    view.draw();
    if (turn.stored) this.address = turn.response.id;
    else if (!this.address) this.address = localAddress();
    if (turn === this.turns[0] && turn.stored && this.roots.length) this.roots.push(turn.response);
    for (const each of this.turns) if (each === turn || each === this.turns.at(-2)) this.#settle(each);
    this.on.changed(this);
    this.on.ended(turn);
    if (turn.stored) {
      turn.measures = { ...turn.log.measures(), ...(await recorded(turn.response.id)) };
      view.measured(this.#before(turn));
    }
  }

  async #read(running, batches) {
    const { turn } = running;
    const view = this.views.get(turn);
    const paint = () => {
      view.draw();
      this.on.painted(turn);
    };
    for await (const batch of batches) {
      for (const [raw, event] of batch) {
        turn.log.add(raw, event);
        turn.live.apply(event);
      }
      const { response } = turn.live;
      if (response) this.made.add(response.id);
      if (response?.background && running.id !== response.id) {
        running.id = response.id;
        this.address = response.id;
        this.on.changed(this);
      }
      schedule(paint);
    }
    if (!turn.live.ended) throw new ApiError("The connection to the server was lost.", { code: "connection_lost" });
  }

  async #failed(running, error) {
    const { turn, id } = running;
    if (error.name === "AbortError") turn.stopped = true;
    else if (id && isLost(error) && (await this.#followAgain(running))) return;
    else if (!turn.live.ended) {
      turn.failure = error instanceof ApiError ? error : new ApiError(error.message);
      this.on.refused(turn.failure);
    }
  }

  // Resume a background response's stream after its last event.
  async #followAgain(running) {
    const { turn, id, abort } = running;
    const view = this.views.get(turn);
    for (let attempt = 0; attempt < RESUMES && !turn.stopped; attempt++) {
      view.wait("Reconnecting…");
      const { last } = turn.live;
      try {
        const answer = await stream(`responses/${id}?stream=true&starting_after=${last}`, { signal: abort.signal });
        view.resumed();
        await this.#read(running, answer.batches);
        return true;
      } catch (error) {
        if (!isLost(error)) return false;
        if (turn.live.last > last) attempt = 0; // there was progress
        await new Promise((done) => setTimeout(done, Math.min(500 * 2 ** attempt, LONGEST_PAUSE)));
      }
    }
    return false;
  }

  #made(turn) {
    let view = this.views.get(turn);
    if (!view) {
      view = new TurnView(turn, this.acts);
      this.views.set(turn, view);
    }
    return view;
  }

  #number() {
    for (const [index, turn] of this.turns.entries()) turn.number = index + 1;
  }

  #before(turn) {
    return this.turns[this.turns.indexOf(turn) - 1];
  }

  #settle(turn) {
    const index = this.turns.indexOf(turn);
    const branches = this.branches(turn);
    this.#made(turn).settle({
      last: index === this.turns.length - 1,
      busy: Boolean(this.running),
      before: this.turns[index - 1],
      next: this.turns[index + 1],
      branch: [branches.findIndex(({ current }) => current) + 1, branches.length],
    });
  }

  /** Update the controls of all turns. */
  settle() {
    for (const turn of this.turns) if (this.views.has(turn)) this.#settle(turn);
  }

  /**
   * Return a turn's siblings by age. Siblings in memory have `turns`; others have only an `id`.
   * @returns {{current?: boolean, turns?: any[], id?: string, asked: number}[]}
   */
  branches(turn) {
    const current = { current: true, id: turn.response?.id, asked: turn.asked };
    const made = turn.others.map((turns) => ({ turns, id: turns[0].response?.id, asked: turns[0].asked }));
    const found = new Map([current, ...made].map((each) => [each.id ?? each, each]));
    if (turn.stored) {
      const entries = this.#entries();
      const roots = this.roots.map(({ id }) => id);
      for (const id of siblings(entries, turn.response.id, roots)) {
        const asked = [...entries, ...this.roots].find((entry) => entry.id === id).created_at;
        if (!found.has(id)) found.set(id, { id, asked });
      }
    }
    return [...found.values()].sort((one, other) => one.asked - other.asked);
  }

  /** Show a sibling in memory. For another one, return the id of the response to open. */
  showBranch(turn, step) {
    const branches = this.branches(turn);
    const wanted = branches[branches.findIndex(({ current }) => current) + step];
    if (!wanted) return null;
    if (!wanted.turns) return newestFrom(this.#entries(), wanted.id);
    const taken = this.cutFrom(turn);
    wanted.turns[0].others = othersOf(taken, wanted.turns);
    this.#append(wanted.turns);
    return null;
  }

  // Entries of stored responses on all branches, without failed ones.
  #entries() {
    const path = this.turns
      .filter((turn) => turn.stored)
      .map(({ response, request, asked }) => ({
        id: response.id,
        previous_response_id: request.previous_response_id ?? null,
        created_at: asked,
      }));
    const known = new Set(path.map(({ id }) => id));
    return [...path, ...this.forks.filter(({ id, status }) => !known.has(id) && status !== "failed")];
  }
}

// The id that a first turn shares with its siblings: that of the first among them.
const rootOf = ({ response }) => response.metadata?.[BRANCH_OF] ?? response.id;

let locals = 0;

function localAddress() {
  locals += 1;
  return `local-${locals}`;
}

// The branches beside a new turn: the removed turns and their siblings. A failed turn without output is dropped.
function othersOf(taken, shown = null) {
  if (!taken.length) return [];
  const kept = taken[0].state === "failed" && !taken[0].live.items.length ? [] : [taken];
  return [...taken[0].others, ...kept].filter((turns) => turns !== shown);
}

const isLost = ({ code }) => code === "connection_lost" || code === "connection_failed";
