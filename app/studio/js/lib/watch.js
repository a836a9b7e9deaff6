// Looks at something while its view is shown: again `every` ms after the last look has ended.
export class Watch {
  constructor(look, every) {
    this.look = look;
    this.every = every;
  }

  start() {
    this.shown = true;
    this.again();
  }

  stop() {
    this.shown = false;
    clearTimeout(this.timer);
  }

  // Look now.
  async again() {
    clearTimeout(this.timer);
    if (!this.shown) return;
    try {
      if (!document.hidden) await this.look();
    } finally {
      clearTimeout(this.timer); // there may have been another look meanwhile
      if (this.shown) this.timer = setTimeout(() => this.again(), this.every);
    }
  }
}
