// JSON with what fits on a line on one line. No DOM.

const WIDTH = 58; // characters

/** @returns {string} a value as JSON; objects and lists that are short take one line */
export function compact(value, width = WIDTH, indent = "") {
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const line = oneLine(value);
  if (indent.length + line.length <= width) return line;
  const list = Array.isArray(value);
  const inner = `${indent}  `;
  const parts = list
    ? value.map((each) => compact(each, width, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${compact(each, width, inner)}`);
  const [open, close] = list ? "[]" : "{}";
  return `${open}${filled(parts, width - indent.length - 2).join(`,\n${indent} `)}${close}`;
}

// Parts in lines, as many in each as fit.
function filled(parts, width) {
  const lines = [];
  for (const part of parts) {
    const last = lines.at(-1);
    const fits = last !== undefined && !`${last}${part}`.includes("\n") && last.length + part.length + 2 <= width;
    if (fits) lines[lines.length - 1] = `${last}, ${part}`;
    else lines.push(part);
  }
  return lines;
}

function oneLine(value) {
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  if (Array.isArray(value)) return `[${value.map(oneLine).join(", ")}]`;
  return `{${Object.entries(value)
    .map(([name, each]) => `${JSON.stringify(name)}: ${oneLine(each)}`)
    .join(", ")}}`;
}
