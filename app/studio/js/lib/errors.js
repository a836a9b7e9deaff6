// What to do about an error.

const ADVICE = {
  connection_failed: "Is it still running? Start it again with “make serve” or “antiphon serve”, then retry.",
  connection_lost: "Retry. A background response can be resumed from Responses.",
  invalid_api_key: "Set the key of this server with the Key button.",
  model_not_found: "Choose another model, or look at About for what is served.",
  context_length_exceeded: "Start a new conversation, or set truncation to auto under Options.",
  rate_limit_exceeded: "Wait a moment, then retry.",
  insufficient_quota: "The provider's account has no credit left.",
  previous_response_not_found: "The conversation has expired or was deleted. Start a new one.",
  origin_not_allowed:
    "Open the studio at the address that the server listens on, or name this origin in ANTIPHON_CORS_ORIGINS.",
};

export function advice(error) {
  if (error.retryAfter) return `Retry in ${error.retryAfter} s.`;
  if (ADVICE[error.code]) return ADVICE[error.code];
  if (error.status === 401 || error.status === 403) return ADVICE.invalid_api_key;
  if (error.status === 429) return ADVICE.rate_limit_exceeded;
  if (error.param) return `Change “${error.param}”, then retry.`;
  if (error.status >= 500)
    return "Retry; if it stays, “antiphon check” says what is wrong, and the server's log has more.";
  return "Retry.";
}
