// JSON with what fits on a line on one line. No DOM.

const WIDTH = 64; // characters

/** @returns {string} a value as JSON; objects and lists that are short take one line */
export function compact(value, width = WIDTH, indent = "") {
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const line = oneLine(value);
  if (indent.length + line.length <= width) return line;
  const inner = `${indent}  `;
  const list = Array.isArray(value);
  const parts = list
    ? value.map((each) => compact(each, width, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${compact(each, width, inner)}`);
  const [open, close] = list ? "[]" : "{}";
  return parts.length
    ? `${open}\n${parts.map((part) => inner + part).join(",\n")}\n${indent}${close}`
    : `${open}${close}`;
}

function oneLine(value) {
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  if (Array.isArray(value)) return `[${value.map(oneLine).join(", ")}]`;
  return `{${Object.entries(value)
    .map(([name, each]) => `${JSON.stringify(name)}: ${oneLine(each)}`)
    .join(", ")}}`;
}
