// What every driver for Node has: scenarios by name, and what a client shows of each as one line of JSON.
//
//     node driver.mjs text stream

export const URL = process.env.OPENAI_BASE_URL;
export const KEY = process.env.OPENAI_API_KEY;
export const MODEL = process.env.MODEL;

// What is said in the scenarios that all clients have.
export const HELLO = "Say hello.";
export const NAME = "My name is Ada.";
export const ASK_NAME = "What is my name?";
export const WEATHER = "How is the weather in Paris and in Oslo?";
export const WHO = "Who was Ada Lovelace?";
export const SUM = "What is six times seven?";
export const ADD = "What is one and two?";

// The function that a model may call.
export const weather = (place) => `Sunny in ${place}.`;

/** Play the scenarios that are named on the command line. */
export async function play(scenarios) {
  for (const name of process.argv.slice(2)) {
    let shown;
    try {
      shown = await scenarios[name]();
    } catch (error) {
      shown = { error: error.constructor.name, message: error.message, status: error.status ?? error.statusCode ?? null };
    }
    await new Promise((written) => process.stdout.write(`${JSON.stringify(shown)}\n`, written));
  }
  process.exit(0); // whatever a client still keeps open
}
