// Text as it is shown.

// Marks that reorder or hide the text around them: they are shown by name, so that they do nothing.
const HIDDEN = /[\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}]/gu;

export function plain(text) {
  return String(text ?? "").replace(HIDDEN, (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase()}⟩`);
}

/** A duration: "431 ms", "1.65 s", "2 min 5 s", "7 h 42 min", "3 d 4 h". */
export function seconds(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const whole = Math.round(ms / 1000);
  const [unit, size, next, rest] =
    whole < 3600 ? ["min", 60, "s", 1] : whole < 86_400 ? ["h", 3600, "min", 60] : ["d", 86_400, "h", 3600];
  const left = Math.floor((whole % size) / rest);
  return `${Math.floor(whole / size)} ${unit}${left ? ` ${left} ${next}` : ""}`;
}

/** A duration that is watched: "12 s", "2 min 5 s". */
export const wholeSeconds = (ms) => (ms < 59_500 ? `${Math.max(1, Math.round(ms / 1000))} s` : seconds(ms));

/** The beginning of an id, by which a person recognizes it: "resp_7d8bd90e…". */
export const shortId = (id) => (id.length > 16 ? `${id.slice(0, id.indexOf("_") + 9)}…` : id);

const WHOLE = new Intl.NumberFormat("en-US");

export const count = (number) => WHOLE.format(Number(number));

// "1 token", "2,000 tokens"; `plural` where it is not the noun and an s.
export const many = (number, noun, plural = `${noun}s`) => `${count(number)} ${Number(number) === 1 ? noun : plural}`;

/** Input tokens, with the share that the backend read from its cache, and output tokens. */
export function tokens({ input_tokens: input, output_tokens: output, input_tokens_details: details }) {
  const cached =
    input && details?.cached_tokens ? ` (${Math.round((100 * details.cached_tokens) / input)}% cached)` : "";
  return `${many(input, "token")} in${cached}, ${count(output)} out`;
}

// Tokens a second from the first to the last; null where these are too few or too close to say anything.
export function speed(output, { seconds: all, first_token_seconds: first, last_token_seconds: last = all }) {
  if (!(output >= 10) || typeof first !== "number" || !(last - first >= 0.05)) return null;
  const rate = (output - 1) / (last - first);
  return rate < 100 ? rate.toFixed(1) : count(Math.round(rate));
}

export function when(unix) {
  const date = new Date(unix * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return today ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })}, ${time}`;
}

// How long ago something was: "now", "5 min", "3 h", then its day.
export function ago(unix, now = Date.now()) {
  const minutes = Math.floor((now - unix * 1000) / 60_000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  return new Date(unix * 1000).toLocaleDateString([], { month: "short", day: "numeric" });
}

export function cut(text, length) {
  const flat = String(text ?? "");
  return flat.length > length ? `${flat.slice(0, length)}…` : flat;
}

// A URL that a link may lead to; null for `javascript:`, `data:` and the like.
export function webUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// A value as JSON, laid out, and a text too, if it is JSON; long strings of base64 are told by their length.
export function pretty(value) {
  let parsed = value;
  if (typeof value === "string") {
    try {
      parsed = JSON.parse(value);
    } catch {
      return plain(value);
    }
  }
  return laidOut(parsed);
}

export function laidOut(value) {
  return plain(
    JSON.stringify(
      value,
      (_, each) =>
        isBlob(each)
          ? `${each.slice(0, 40)}… (${count(each.length)} characters)`
          : typeof each === "string"
            ? each.replace(DATA_URL, (url, head) => `${head}… (${count(url.length)} characters)`)
            : each,
      2,
    ),
  );
}

const DATA_URL = /(data:[\w/+.-]+;base64,[\w+/=]{16})[\w+/=]{200,}/g;
const isBlob = (value) => typeof value === "string" && value.length > 2000 && !/\s/.test(value.slice(0, 2000));
