// The state of the log in its address: `#/responses/resp_…?status=failed&since=3600&sort=-duration`. No DOM.

const MINUTE = 60;

/** Filters that the server applies by the same name. */
export const FILTERS = ["status", "model", "tool", "backend", "key", "delivery", "text", "conversation"];

/** Ranges of time that can be chosen, in seconds. */
export const RANGES = [
  [900, "Last 15 minutes"],
  [3600, "Last hour"],
  [21_600, "Last 6 hours"],
  [86_400, "Last 24 hours"],
  [604_800, "Last 7 days"],
  [2_592_000, "Last 30 days"],
];

/**
 * @typedef {Object} Query what the log shows
 * @property {Record<string, string>} filters by name, `metadata[name]` included
 * @property {number} since seconds before now; 0 for all
 * @property {string} from a local date and time; ""
 * @property {string} to a local date and time; ""
 * @property {string} sort
 */

/** @param {URLSearchParams} search @returns {Query} */
export function readQuery(search) {
  const filters = {};
  for (const [name, value] of search)
    if (value && (FILTERS.includes(name) || METADATA.test(name))) filters[name] = value;
  return {
    filters,
    since: Math.max(0, Number(search.get("since")) || 0),
    from: search.get("from") ?? "",
    to: search.get("to") ?? "",
    sort: search.get("sort") ?? "-time",
  };
}

const METADATA = /^metadata\[.+\]$/;

/** @param {Query} query @returns {string} as it stands in an address, with its "?"; "" for the default */
export function writeQuery({ filters, since, from, to, sort }) {
  const search = new URLSearchParams(filters);
  if (since) search.set("since", String(since));
  if (from) search.set("from", from);
  if (to) search.set("to", to);
  if (sort && sort !== "-time") search.set("sort", sort);
  const text = search.toString().replaceAll("%5B", "[").replaceAll("%5D", "]");
  return text ? `?${text}` : "";
}

/** The parameters of the server's list, each with its "&". The time is rounded, so that it changes once a minute. */
export function listQuery({ filters, since, from, to }, now = Date.now()) {
  const search = new URLSearchParams(filters);
  if (since) search.set("created_after", String(Math.floor(now / 1000 / MINUTE) * MINUTE - since));
  if (from && Date.parse(from)) search.set("created_after", String(Math.floor(Date.parse(from) / 1000)));
  if (to && Date.parse(to)) search.set("created_before", String(Math.ceil(Date.parse(to) / 1000)));
  const text = search.toString();
  return text ? `&${text}` : "";
}

/** The number of conditions that are set, without the search. */
export const conditions = ({ filters, since, from, to }) =>
  Object.keys(filters).filter((name) => name !== "text").length + (since || from || to ? 1 : 0);

/**
 * `team=web` as a filter by metadata.
 * @returns {[string, string] | null}
 */
export function metadataFilter(text) {
  const [, name, value] = /^\s*([^=:]+?)\s*[=:]\s*(.+?)\s*$/.exec(text) ?? [];
  return name ? [`metadata[${name}]`, value] : null;
}
