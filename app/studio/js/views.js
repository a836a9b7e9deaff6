// The views other than Talk. `main.js` imports them when one is opened or when the page is idle.

import { About } from "./about.js";
import { Compare } from "./compare.js";
import { Files } from "./files.js";
import { Keys } from "./keys.js";
import { Now } from "./now.js";
import { Responses } from "./responses.js";
import { Usage } from "./usage.js";

/** @param {() => any} parameters returns the options of Talk, as request parameters */
export function makeViews(parameters) {
  return {
    compare: new Compare({ parameters }),
    responses: new Responses(),
    usage: new Usage(),
    keys: new Keys(),
    now: new Now(),
    files: new Files(),
    about: new About(),
  };
}
