// Data of the conversation list: grouping by day.

/** The chain key: the last 24 characters, which all response ids of a conversation share. */
export const chainOf = (id) => id?.slice(-24) ?? "";

/**
 * Return the list's rows: {day} for a heading, {entry} for a conversation. Pinned conversations come first.
 * @param {any[]} entries the newest first, with `updated_at` in Unix time
 * @param {{pins?: boolean, now?: Date}} [how] `pins`: pinned conversations are a group of their own
 */
export function grouped(entries, { pins = true, now = new Date() } = {}) {
  const groups = new Map();
  if (pins && entries.some(({ pinned }) => pinned)) groups.set("Pinned", []);
  for (const entry of entries) {
    const day = pins && entry.pinned ? "Pinned" : dayOf(entry.updated_at, now);
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
