// Lists that keep the elements of the entries that stay: their focus, hover and scroll positions are not lost.

/** @type {WeakMap<object, Map<string, {node: any, entry: any}>>} */
const lists = new WeakMap();

/**
 * Make the children of `list` those of `entries`, in this order.
 * @param {any} list an element, whose children are made by this function alone
 * @param {any[]} entries
 * @param {object} how
 * @param {(entry: any) => string} how.key a unique text of an entry
 * @param {(entry: any) => any} how.make returns the element of a new entry
 * @param {(node: any, entry: any) => void} [how.update] called if the entry of a key is another object; without it the
 *   element is made anew
 */
export function keyed(list, entries, { key, make, update }) {
  const before = lists.get(list) ?? new Map();
  const after = new Map();
  for (const entry of entries) {
    const name = key(entry);
    const known = before.get(name);
    if (!known) after.set(name, { node: make(entry), entry });
    else if (known.entry === entry) after.set(name, known);
    else if (update) {
      update(known.node, entry);
      after.set(name, { node: known.node, entry });
    } else {
      const node = make(entry);
      known.node.replaceWith(node);
      after.set(name, { node, entry });
    }
  }
  for (const [name, { node }] of before) if (!after.has(name)) node.remove();
  let place = list.firstChild;
  for (const { node } of after.values()) {
    if (node === place) place = place.nextSibling;
    else list.insertBefore(node, place);
  }
  lists.set(list, after);
}
