// Cancelling a response that runs.

import { send } from "./api.js";
import { announce } from "./dom.js";

/** Cancel a response, and announce the result.
 * @param {string} id */
export async function cancelResponse(id) {
  try {
    await send("POST", `responses/${id}/cancel`, {});
    announce("Cancelled.");
  } catch (error) {
    announce(error.message);
  }
}
