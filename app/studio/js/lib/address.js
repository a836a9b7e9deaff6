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

/**
 * Go to another address of the current view without a new entry in the history: the view is shown again. Does nothing if
 * another view is shown by now, as after a delayed search.
 */
export function replaceAddress(hash) {
  if (location.hash === hash || readAddress(location.hash).view !== readAddress(hash).view) return;
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
