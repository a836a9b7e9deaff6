// A conversation as a tree of its responses. No DOM.

/**
 * The rows of the tree, in the order in which they are shown. A line without forks stays on one level; forks are one
 * level deeper than the turn that they continue, and what follows a fork is one level deeper than the fork.
 * @param {{response: any, text: string}[]} turns every response of the conversation
 * @returns {{response: any, text: string, depth: number, fork: boolean}[]}
 */
export function rowsOf(turns) {
  const children = new Map();
  const ids = new Set(turns.map(({ response }) => response.id));
  for (const turn of turns) {
    const parent = ids.has(turn.response.previous_response_id) ? turn.response.previous_response_id : "";
    children.set(parent, [...(children.get(parent) ?? []), turn]);
  }
  const rows = [];
  const open = (children.get("") ?? []).toReversed().map((turn) => [turn, 0, false]);
  while (open.length) {
    const [turn, depth, fork] = open.pop();
    rows.push({ ...turn, depth, fork });
    const next = (children.get(turn.response.id) ?? []).toSorted(
      (one, other) => one.response.created_at - other.response.created_at,
    );
    const forks = next.length > 1;
    const deeper = forks || fork ? depth + 1 : depth;
    for (const each of next.toReversed()) open.push([each, deeper, forks]);
  }
  return rows;
}
