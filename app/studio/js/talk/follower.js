// Keeps a scrolling region at its end while its content grows, unless its reader has scrolled up.

const NEAR = 40; // px from the end that still count as the end

export class Follower {
  /** @param {any} scroller @param {any} content what grows in it @param {any} jump a button that leads to the end */
  constructor(scroller, content, jump) {
    this.scroller = scroller;
    this.jump = jump;
    this.pinned = true;
    this.top = 0;
    this.sizes = "";
    // Sizes are observed after layout, so that reading them here forces no other one.
    const observer = new ResizeObserver(() => this.#resized());
    observer.observe(scroller);
    observer.observe(content);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    jump.addEventListener("click", () => this.pin());
  }

  /** Go to the end, and stay there. */
  pin() {
    this.pinned = true;
    this.#end();
  }

  /** Stay where it is. */
  release() {
    this.pinned = false;
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
    // Only a person scrolls up without a change of sizes: else the browser has adjusted the position.
    else if (moved && scrollTop < this.top) this.pinned = false;
    this.#remember();
  }

  #remember() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    this.top = scrollTop;
    this.sizes = `${clientHeight}/${scrollHeight}`;
    this.jump.hidden = this.pinned || scrollTop + clientHeight >= scrollHeight - clientHeight / 2;
  }
}
