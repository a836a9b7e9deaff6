// The rows of the log: pages of the server's list merged, held back while somebody reads, and sorted. No DOM.

/** @typedef {{id: string, created_at: number, status: string, [field: string]: any}} Entry */

const RUNNING = new Set(["queued", "in_progress"]);

export const isRunning = (/** @type {Entry} */ entry) => RUNNING.has(entry.status);

/** What a column sorts by. */
const VALUES = {
  time: (entry) => entry.created_at,
  status: (entry) => entry.status,
  model: (entry) => entry.model,
  backend: (entry) => entry.backend,
  key: (entry) => entry.key,
  delivery: (entry) => entry.delivery,
  input: (entry) => entry.preview,
  output: (entry) => entry.answer,
  in: (entry) => entry.usage?.input_tokens,
  out: (entry) => entry.usage?.output_tokens,
  first: (entry) => entry.first_token_seconds,
  duration: (entry) => entry.seconds,
  cost: (entry) => entry.cost,
};

export class Log {
  constructor() {
    this.clear();
  }

  clear() {
    /** @type {Entry[]} */
    this.entries = []; // in the order of the server: newest first
    /** @type {Entry[]} */
    this.held = []; // newer ones, which are not shown yet
    /** @type {string | null} */
    this.last = null; // the id to continue from
    this.more = false;
  }

  /**
   * Take in the first page of the list, again. With `hold`, new entries wait until `release`.
   * @returns {boolean} whether anything changed
   */
  refresh(page, { hold = false } = {}) {
    const shown = new Map(this.entries.map((entry) => [entry.id, entry]));
    const joins = page.data.some(({ id }) => shown.has(id)) || this.held.some(({ id }) => id === page.data.at(-1)?.id);
    if (this.entries.length && page.has_more && !joins) {
      // More came than a page has: there would be a gap, so the list begins anew.
      this.clear();
      shown.clear();
    }
    const fresh = page.data.filter(({ id }) => !shown.has(id));
    const newer = new Map(page.data.map((entry) => [entry.id, entry]));
    let changed = false;
    this.entries = this.entries.map((entry) => {
      const now = newer.get(entry.id);
      if (!now || same(entry, now)) return entry;
      changed = true;
      return now;
    });
    const first = !this.entries.length;
    if (first) {
      this.last = page.last_id;
      this.more = page.has_more;
    }
    // What is listed no longer was deleted, if the page reaches further back than it.
    if (!page.has_more && !first) {
      const kept = this.entries.filter(({ id }) => newer.has(id));
      changed ||= kept.length !== this.entries.length;
      this.entries = kept;
      this.more = false;
    }
    if (hold && !first) {
      changed ||= fresh.length !== this.held.length;
      this.held = fresh;
      return changed;
    }
    this.held = [];
    this.entries = [...fresh, ...this.entries];
    return changed || fresh.length > 0;
  }

  /** Show the entries that were held back. */
  release() {
    this.entries = [...this.held, ...this.entries];
    this.held = [];
  }

  /** Add an older page. */
  extend(page) {
    const known = new Set(this.entries.map(({ id }) => id));
    this.entries = [...this.entries, ...page.data.filter(({ id }) => !known.has(id))];
    this.last = page.last_id ?? this.last;
    this.more = page.has_more;
  }

  remove(id) {
    this.entries = this.entries.filter((entry) => entry.id !== id);
  }

  /** The entries in the order of a sort: a column, with `-` before it for descending. Missing values are last. */
  sorted(sort = "-time") {
    const descending = sort.startsWith("-");
    const value = VALUES[descending ? sort.slice(1) : sort] ?? VALUES.time;
    const sign = descending ? -1 : 1;
    return [...this.entries].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      const [none, nothing] = [a === null || a === undefined, b === null || b === undefined];
      if (none || nothing) return Number(none) - Number(nothing);
      return typeof a === "string" ? sign * a.localeCompare(b) : sign * (a - b);
    });
  }
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** The seconds that the whole width of the waterfall stands for: outliers are cut off. */
export function scaleOf(entries) {
  const times = entries
    .map(({ seconds }) => seconds)
    .filter(Boolean)
    .sort((one, other) => one - other);
  if (!times.length) return 1;
  return Math.min(times.at(-1), times[Math.floor((times.length - 1) * 0.95)] * 1.25);
}
