// Branches of a conversation. Edited and retried turns are siblings: they share `previous_response_id`.

/** @typedef {{id: string, previous_response_id: string | null, created_at: number}} Entry */

/**
 * Return a response's siblings including itself, oldest first.
 * `roots` are the ids of sibling first turns, which the server stores as separate conversations.
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
 * Return the newest descendant of a response, or the response itself.
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
      // Timestamps have a resolution of one second, so a child can be as old as its parent.
      if (child.created_at >= newest.created_at) newest = child;
      open.push(child);
    }
  }
  return newest?.id ?? id;
}
