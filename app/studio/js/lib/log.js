// The events of one stream, with their times; bounded, so that a long answer does not fill the memory.

const MOST = 20_000;

const TOKENS = /\.delta$/;

export class EventLog {
  constructor() {
    this.began = performance.now();
    this.events = []; // {at (ms since the request), type, raw, number}
    this.dropped = 0;
    this.bytes = 0;
    this.first = null; // ms to the first token
    this.last = null; // ms to the last token
    this.ended = null; // ms to the end
    this.deltas = 0;
  }

  add(raw, event) {
    const at = performance.now() - this.began;
    if (TOKENS.test(event.type)) {
      this.first ??= at;
      this.last = at;
      this.deltas++;
    }
    this.bytes += raw.length;
    this.events.push({ at, type: event.type, raw, number: event.sequence_number });
    if (this.events.length > MOST) {
      this.events.splice(0, MOST / 4);
      this.dropped += MOST / 4;
    }
  }

  end() {
    this.ended ??= performance.now() - this.began;
  }

  // Tokens a second, from the first token to the last; null where these are too few or too close to say anything.
  rate(usage) {
    const tokens = usage?.output_tokens ?? 0;
    return tokens >= 10 && this.last - this.first >= 50 ? (tokens - 1) / ((this.last - this.first) / 1000) : null;
  }
}
