// The branches of a conversation: turns that were edited or retried have siblings, which continue the same turn.

/** @typedef {{id: string, previous_response_id: string | null, created_at: number}} Entry */

/**
 * The siblings of a response, oldest first, with itself: all entries that continue the same response.
 * `roots` are the ids of first turns that replaced one another; the server knows them as separate conversations.
 * @param {Entry[]} entries
 * @param {string} id
 * @param {string[]} roots
 */
export function siblings(entries, id, roots = []) {
  const entry = entries.find((each) => each.id === id);
  if (!entry) return [id];
  if (!entry.previous_response_id) return roots.includes(id) ? roots : [id];
  return entries
    .filter((each) => each.previous_response_id === entry.previous_response_id)
    .sort((one, other) => one.created_at - other.created_at)
    .map((each) => each.id);
}

/**
 * The newest response that continues from a response, at any distance; itself if nothing does.
 * @param {Entry[]} entries
 * @param {string} id
 */
export function newestFrom(entries, id) {
  /** @type {Map<string | null, Entry[]>} */
  const children = new Map();
  for (const entry of entries) {
    const { previous_response_id: before } = entry;
    children.set(before, [...(children.get(before) ?? []), entry]);
  }
  let newest = entries.find((entry) => entry.id === id);
  const open = newest ? [newest] : [];
  while (open.length) {
    for (const child of children.get(open.pop().id) ?? []) {
      // A child is as old as its parent where both began in the same second.
      if (child.created_at >= newest.created_at) newest = child;
      open.push(child);
    }
  }
  return newest?.id ?? id;
}

/**
 * Record that a first turn replaced another one. `groups` are lists of ids, the newest group last; at most 200 stay.
 * @param {string[][]} groups
 */
export function withRoot(groups, before, id) {
  const group = groups.find((each) => each.includes(before)) ?? [before];
  return [...groups.filter((each) => each !== group), [...group, id]].slice(-200);
}
