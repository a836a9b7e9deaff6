// Addresses within the page: `#/view/argument?name=value`.

/**
 * @param {string} hash
 * @returns {{view: string, argument: string | null, query: URLSearchParams}} the argument as it was encoded, if it
 *   cannot be decoded
 */
export function readAddress(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view, argument = ""] = path.split(/\/(.*)/s);
  return { view, argument: argument ? decoded(argument) : null, query: new URLSearchParams(search) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Go to an address without a new entry in the history: the view is shown again, with the new address. */
export function replaceAddress(hash) {
  if (location.hash === hash) return;
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
