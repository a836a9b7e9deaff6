// What to do about an error.

const ADVICE = {
  connection_failed: "Check that the server is running (“antiphon serve”), then retry.",
  connection_lost: "Background responses continue and are listed under Responses.",
  invalid_api_key: "Enter a valid key under API key.",
  model_not_found: "Choose another model. About lists the available ones.",
  context_length_exceeded: "Start a new conversation, or set truncation to auto under Options.",
  rate_limit_exceeded: "Retry in a minute.",
  insufficient_quota: "The provider's account has no credit left.",
  previous_response_not_found: "The conversation has expired or was deleted. Start a new one.",
  origin_not_allowed: "Open the studio at the server's own address, or add this origin to ANTIPHON_CORS_ORIGINS.",
};

const HOUR = 3_600_000; // ms

/** The time at which a request can be sent again, in ms since 1970; null if the error does not say. */
export function retryAt({ retryAfter, at = Date.now() }) {
  if (!retryAfter) return null;
  const seconds = Number(retryAfter);
  const time = Number.isNaN(seconds) ? Date.parse(retryAfter) : at + seconds * 1000;
  return Number.isNaN(time) ? null : time;
}

/** "in 42 s", "in 12 min", "in 7 h 42 min"; "now" in the past. */
export function until(time, now = Date.now()) {
  const seconds = Math.ceil((time - now) / 1000);
  if (seconds <= 0) return "now";
  if (seconds < 100) return `in ${seconds} s`;
  const minutes = Math.ceil(seconds / 60);
  if (minutes < 100) return `in ${minutes} min`;
  return `in ${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
}

/** "tomorrow at 00:00 UTC (in 7 h 42 min)". */
export function resetText(time, now = Date.now()) {
  const minute = new Date(Math.round(time / 60_000) * 60_000); // a reset is at a full minute, and the wait is rounded up
  const day = (date) => Math.floor(date / (24 * HOUR));
  const days = day(minute.getTime()) - day(now);
  const date = minute.toLocaleDateString("en-GB", { day: "numeric", month: "long", timeZone: "UTC" });
  const name = days === 0 ? "today" : days === 1 ? "tomorrow" : `on ${date}`;
  return `${name} at ${minute.toISOString().slice(11, 16)} UTC (${until(minute.getTime(), now)})`;
}

/** What to do about an error, in a sentence; "" if only a retry can help. */
export function advice(error, now = Date.now()) {
  const retry = retryAt(error);
  if (retry !== null && retry - now >= HOUR) return `Resets ${resetText(retry, now)}.`;
  if (retry !== null) return retry > now ? `Retry ${until(retry, now)}.` : "Retry now.";
  if (ADVICE[error.code]) return ADVICE[error.code];
  if (error.status === 401 || error.status === 403) return ADVICE.invalid_api_key;
  if (error.status === 429) return ADVICE.rate_limit_exceeded;
  if (error.param) return `Change “${error.param}”, then retry.`;
  if (error.status >= 500) return "If the error persists, run “antiphon check” and read the server's log.";
  return "";
}
