// Export conversations as files.

import { textOf } from "../parts/answer.js";
import { writtenText } from "./turn.js";

/**
 * Format a conversation as Markdown: questions, answers and calls.
 * @param {{response: any, input: any[]}[]} chain oldest first
 * @param {string} title
 */
export function asMarkdown(chain, title) {
  const turns = chain.map(({ response, input }) => {
    const question = writtenText(input) || input.map(({ type }) => `(${type})`).join("\n");
    const calls = response.output
      .filter(({ name }) => name)
      .map(({ name, arguments: given = "" }) => `> Called \`${name}\` \`${given}\``);
    return [`## You\n\n${question}`, `## ${response.model}`, ...calls, textOf(response)].filter(Boolean).join("\n\n");
  });
  return `# ${title}\n\n${turns.join("\n\n")}\n`;
}

/** Format stored responses and their input items as JSON. */
export function asJson(chain) {
  return `${JSON.stringify(
    chain.map(({ response, input, request }) => ({ input, request, response })),
    null,
    2,
  )}\n`;
}

/** Build a file name from a title. */
export function fileName(title, extension) {
  const words = title
    .normalize("NFKD")
    .replace(/[^\p{Letter}\p{Number}]+/gu, "-")
    .replace(/^-|-$/g, "");
  return `${words.slice(0, 60).toLowerCase() || "conversation"}.${extension}`;
}
