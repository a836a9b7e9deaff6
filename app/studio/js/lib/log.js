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

  // The times of the stream, in seconds since the request, as the server measures those of a stored response.
  measures() {
    const inSeconds = (ms) => (ms === null ? null : ms / 1000);
    return {
      seconds: inSeconds(this.ended),
      first_token_seconds: inSeconds(this.first),
      last_token_seconds: inSeconds(this.last),
    };
  }
}
