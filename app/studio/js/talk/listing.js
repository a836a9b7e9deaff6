// Data of the conversation list: grouping by day, names and pins in localStorage.

const KEPT = "antiphon.conversations"; // {chain: {name, pinned: entry}}

/** The chain key: the last 24 characters, which all response ids of a conversation share. */
export const chainOf = (id) => id?.slice(-24) ?? "";

/**
 * Return the list's rows: {day} for a heading, {entry} for a conversation. Pinned conversations come first.
 * @param {any[]} entries the newest first, with `updated_at` in Unix time
 * @param {any[]} pinned snapshots of pinned entries
 * @param {Date} now
 */
export function grouped(entries, pinned = [], now = new Date()) {
  const isPinned = new Set(pinned.map(({ id }) => chainOf(id)));
  const current = new Map(entries.map((entry) => [chainOf(entry.id), entry]));
  const groups = new Map();
  if (pinned.length)
    groups.set(
      "Pinned",
      pinned.map((entry) => current.get(chainOf(entry.id)) ?? entry),
    );
  for (const entry of entries) {
    if (isPinned.has(chainOf(entry.id))) continue;
    const day = dayOf(entry.updated_at, now);
    groups.set(day, [...(groups.get(day) ?? []), entry]);
  }
  return [...groups].flatMap(([day, each]) => [{ day }, ...each.map((entry) => ({ entry }))]);
}

function dayOf(unix, now) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const date = new Date(unix * 1000);
  const days = Math.ceil((midnight.getTime() - date.getTime()) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Previous 7 days";
  return date.toLocaleDateString("en", { month: "long", year: "numeric" });
}

/** Names and pins in localStorage. */
export const kept = {
  all: () => JSON.parse(localStorage.getItem(KEPT) ?? "{}"),
  get: (chain) => kept.all()[chain] ?? {},
  pinned: () => Object.values(kept.all()).flatMap(({ pinned }) => pinned ?? []),

  set(chain, fields) {
    const { [chain]: before, ...rest } = kept.all();
    const filled = Object.entries({ ...before, ...fields }).filter(([, value]) => value);
    localStorage.setItem(KEPT, JSON.stringify(filled.length ? { ...rest, [chain]: Object.fromEntries(filled) } : rest));
  },
};
