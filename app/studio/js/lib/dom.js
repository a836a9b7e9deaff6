// Build elements, and do work once a frame.

/**
 * Create an element: h("p", {class: "note", title: "…", on: {click: f}}, "text", element…). Text never becomes markup.
 * @param {string} tag
 * @param {Object<string, any>} [props] attributes, `on` with listeners, and the properties value, checked, disabled, open
 * @param {...any} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  /** @type {any} */
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    } else if (name === "value" || name === "checked" || name === "disabled" || name === "open") {
      element[name] = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** @type {(id: string) => any} */
export const byId = (id) => document.getElementById(id);

/** @returns {any} */
export function button(label, onclick, props = {}) {
  return h("button", { type: "button", ...props, on: { click: onclick } }, label);
}

// An icon of Lucide, beside a text or in a button that has a label.
export const icon = (name) => h("span", { class: "icon", "data-icon": name, "aria-hidden": "true" });

const BUDGET = 12; // ms of tasks in one frame
const tasks = new Set();
let frame = 0;

// Run a function in the next frame, once, however often it is asked for until then. Tasks that would exceed the frame's
// budget wait for the following frame.
export function schedule(task) {
  tasks.add(task);
  if (!frame) frame = requestAnimationFrame(runTasks);
}

function runTasks() {
  frame = 0;
  const began = performance.now();
  for (const task of [...tasks]) {
    tasks.delete(task);
    task();
    if (performance.now() - began > BUDGET) break;
  }
  if (tasks.size && !frame) frame = requestAnimationFrame(runTasks);
}

// Say something to screen readers, in one polite live region.
export function announce(message) {
  const region = byId("status");
  region.textContent = region.textContent === message ? `${message}\u00a0` : message;
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`${what} copied.`);
    return true;
  } catch {
    announce("The browser does not allow copying here.");
    return false;
  }
}

export function copyButton(text, what, label = "Copy") {
  const made = button(
    [icon("copy"), label],
    async () => {
      if (await copy(typeof text === "function" ? text() : text, what)) {
        made.replaceChildren(icon("check"), "Copied");
        setTimeout(() => made.replaceChildren(icon("copy"), label), 1500);
      }
    },
    { class: "quiet", "aria-label": `Copy ${what.toLowerCase()}` },
  );
  return made;
}
