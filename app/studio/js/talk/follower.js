// Auto-scroll: keeps a growing region at its end until the reader scrolls up.

const NEAR = 40; // px; closer positions count as the end

export class Follower {
  /** @param {any} scroller @param {any} content its growing content @param {any} jump the button "Jump to latest" */
  constructor(scroller, content, jump) {
    this.scroller = scroller;
    this.jump = jump;
    this.pinned = true;
    this.thread = true; // the region has a thread, not the start page
    this.top = 0;
    this.sizes = "";
    // Observers run after layout, so reading sizes here does not force another layout.
    const observer = new ResizeObserver(() => this.#resized());
    observer.observe(scroller);
    observer.observe(content);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    jump.addEventListener("click", () => this.pin());
  }

  /** Scroll to the end and follow it. */
  pin() {
    this.pinned = this.thread = true;
    this.#end();
  }

  /** Show the start page, whose end is not followed. */
  release() {
    this.pinned = this.thread = false;
    this.jump.hidden = true;
  }

  #end() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#remember();
  }

  #resized() {
    if (this.pinned) this.#end();
    else this.#remember();
  }

  #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    const moved = `${clientHeight}/${scrollHeight}` === this.sizes;
    if (scrollTop + clientHeight >= scrollHeight - NEAR) this.pinned = true;
    // With unchanged sizes, an upward scroll comes from the reader; otherwise the browser adjusted the position.
    else if (moved && scrollTop < this.top) this.pinned = false;
    this.#remember();
  }

  #remember() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    this.top = scrollTop;
    this.sizes = `${clientHeight}/${scrollHeight}`;
    this.jump.hidden = this.pinned || !this.thread || scrollTop + clientHeight >= scrollHeight - clientHeight / 2;
  }
}
