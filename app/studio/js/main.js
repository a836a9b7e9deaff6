// The page: its views, the key, the models.

import { readAddress } from "./lib/address.js";
import { getJson, key } from "./lib/api.js";
import { askForKey } from "./lib/dialog.js";
import { announce, button, byId, h } from "./lib/dom.js";
import { setCurrency } from "./lib/tables.js";
import { plain } from "./lib/text.js";
import { openPalette } from "./palette.js";
import { setUpKeys, showHelp } from "./shortcuts.js";
import { setUpSide } from "./side.js";
import { Talk } from "./talk.js";

const MODEL = "antiphon.model";

const talk = new Talk({ onmodel: chooseModel });
let models = []; // as the server lists them

// The loaded views by the first part of their address: `#/name/argument`. Each is the section of that id in the page,
// and has show(argument or null, query), hide(), and reset(), called after a key change.
/** @type {Object<string, any>} */
const VIEWS = { talk };
let loading = null; // the promise of the views other than Talk

function loadViews() {
  loading ??= import("./views.js").then(({ makeViews }) => {
    const made = makeViews(() => talk.options.parameters());
    Object.assign(VIEWS, made);
    made.compare.offer(models);
  });
  return loading;
}

async function route() {
  const { view: name, argument, query } = readAddress(location.hash);
  const links = [...byId("nav").querySelectorAll("a")];
  const view = links.some(({ dataset }) => dataset.view === name) ? name : "talk";
  let title = "";
  for (const link of links) {
    byId(link.dataset.view).hidden = link.dataset.view !== view;
    if (link.dataset.view === view) {
      link.setAttribute("aria-current", "page");
      title = link.textContent.trim();
    } else {
      link.removeAttribute("aria-current");
    }
  }
  document.title = view === "talk" ? talk.title : `${title} – Antiphon studio`;
  for (const [each, shown] of Object.entries(VIEWS)) if (each !== view) shown.hide();
  if (!VIEWS[view]) {
    const { hash } = location;
    try {
      await loadViews();
    } catch {
      showMissing(byId(view));
      return;
    }
    if (location.hash !== hash) return;
  }
  VIEWS[view].show(argument, query);
}

// Browsers do not repeat a failed import: the page has to be reloaded.
function showMissing(section) {
  section.querySelector(".missing")?.remove();
  section.append(
    h(
      "div",
      { class: "missing" },
      h("h2", {}, "This view could not be loaded"),
      h("p", {}, "The server cannot be reached, or was updated meanwhile."),
      button("Reload the page", () => location.reload()),
    ),
  );
}

async function loadModels() {
  const select = byId("model");
  try {
    const { data } = await getJson("models");
    const chosen = sessionStorage.getItem(MODEL) ?? select.value;
    select.replaceChildren(...data.map(({ id }) => h("option", { value: id }, plain(id))));
    if (data.some(({ id }) => id === chosen)) select.value = chosen;
    models = data;
    VIEWS.compare?.offer(models);
    talk.listed(select.value || "MODEL");
    nameModel(data.length === 0);
    byId("model-problem").textContent = "";
  } catch (error) {
    nameModel(true);
    byId("model-problem").textContent = error.message;
    askForKey(error);
  }
}

// The models may not be listed yet: then it is chosen when they are.
function chooseModel(model) {
  const select = byId("model");
  sessionStorage.setItem(MODEL, model);
  if ([...select.options].some(({ value }) => value === model)) select.value = model;
  if (!byId("model-name").hidden) byId("model-name").value = model;
}

// Where no models are listed, one is named.
function nameModel(named) {
  byId("model").hidden = named;
  byId("model-name").hidden = !named;
}

// What the server can do, and what to try with it.
async function loadAbout() {
  try {
    const about = await getJson("antiphon/about");
    setCurrency(about.currency);
    talk.offer(about);
    byId("hosted-none").hidden = about.tools.length > 0 || about.file_search;
    byId("hosted-problem").textContent = "";
    const demo = about.backends.some((backend) => backend.profile === "demo");
    byId("try").hidden = false;
    byId("suggestions").replaceChildren(
      ...(demo ? DEMO : ANY).map((suggestion) =>
        h(
          "li",
          {},
          button(suggestion.label, () => talk.try(suggestion)),
        ),
      ),
    );
  } catch (error) {
    byId("hosted-none").hidden = true;
    byId("hosted-problem").textContent = `The server's tools could not be loaded: ${plain(error.message)}`; // the rest of the page works
  }
}

const WEATHER = {
  type: "function",
  name: "get_weather",
  description: "The weather of a place.",
  parameters: { type: "object", properties: { location: { type: "string" } }, required: ["location"] },
};
const PERSON = {
  title: "person",
  type: "object",
  properties: {
    name: { type: "string" },
    age: { type: "integer" },
    likes: { type: "array", items: { type: "string" } },
  },
  required: ["name", "age", "likes"],
  additionalProperties: false,
};
const DEMO = [
  { label: "Stream some Markdown", prompt: "Show me some Markdown." },
  {
    label: "Think first",
    prompt: "Think before you answer: what is an antiphon?",
    parameters: { reasoning: { effort: "medium" } },
  },
  { label: "Call a function", prompt: "What is the weather in Paris?", parameters: { tools: [WEATHER] } },
  {
    label: "Answer in JSON",
    prompt: "Invent a person.",
    parameters: { text: { format: { type: "json_schema", name: "person", schema: PERSON, strict: true } } },
  },
  { label: "Draw an image", prompt: "Draw a picture." },
  { label: "See an error", prompt: "Fail with an error." },
];
const ANY = [
  { label: "Say hello", prompt: "Say hello in three languages, as a table." },
  {
    label: "Write some code",
    prompt: "Write a Python function that reverses a linked list, with a short explanation.",
  },
  { label: "Call a function", prompt: "What is the weather in Paris?", parameters: { tools: [WEATHER] } },
  {
    label: "Answer in JSON",
    prompt: "Invent a person.",
    parameters: { text: { format: { type: "json_schema", name: "person", schema: PERSON, strict: true } } },
  },
];

// Use another key. After a refusal, what is on the page stays: the person behind it is the same.
function setKey(value, refused) {
  key.set(value);
  byId("key-state").textContent = value ? "API key set" : "API key";
  for (const view of Object.values(VIEWS)) if (view !== talk) view.reset();
  talk.rekey(refused);
  route();
  return Promise.all([loadModels(), loadAbout()]);
}

byId("model").addEventListener("change", ({ target }) => sessionStorage.setItem(MODEL, target.value));
byId("key-button").addEventListener("click", () => {
  byId("key-remove").hidden = !key.get();
  byId("key-dialog").showModal();
});
byId("key-dialog").addEventListener("close", ({ target }) => {
  const refused = target.dataset.refused === "true";
  if (target.returnValue === "set") {
    setKey(byId("key").value.trim(), refused);
    announce("API key set for this tab.");
  } else if (target.returnValue === "clear") {
    setKey("", false);
    announce("API key removed.");
  }
  if (target.returnValue !== "cancel") target.dataset.refused = "false";
  byId("key-reason").textContent = "";
  byId("key").value = "";
});
for (const [id, value] of Object.entries({ functions: [WEATHER], schema: PERSON })) {
  byId(`${id}-example`).addEventListener("click", () => {
    byId(id).value = JSON.stringify(value, null, 2);
    byId(id).dispatchEvent(new Event("change", { bubbles: true }));
  });
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view's
  byId("main").focus();
});
addEventListener("hashchange", route);

const currentView = () => byId("nav").querySelector("[aria-current]")?.dataset.view ?? "talk";

function showPalette() {
  const views = [...byId("nav").querySelectorAll("a")].map((link) => ({
    text: `Go to ${link.textContent.trim()}`,
    symbol: link.querySelector(".icon").dataset.icon,
    act: () => link.click(),
  }));
  const models = [...byId("model").options].map(({ value }) => ({
    text: `Use the model ${value}`,
    symbol: "sparkles",
    act: () => chooseModel(value),
  }));
  openPalette(
    [
      { text: "New conversation", symbol: "square-pen", act: () => begin() },
      ...views,
      { text: "Options", symbol: "sliders-horizontal", act: () => showPanel("options") },
      { text: "Inspector", symbol: "panel-right", act: () => showPanel("inspector") },
      { text: "API key", symbol: "key-round", act: () => byId("key-button").click() },
      { text: "Keyboard shortcuts", symbol: "keyboard", act: showHelp },
      ...models,
    ],
    (id) => {
      location.hash = `#/talk/${id}`;
    },
  );
}

// Both also where another view is shown.
function begin() {
  if (currentView() !== "talk") location.hash = "#/talk";
  talk.begin();
}

function showPanel(panel) {
  if (currentView() !== "talk") location.hash = byId("nav").querySelector('[data-view="talk"]').hash;
  talk.openPanel(panel);
}

setUpKeys({
  onescape: () => currentView() === "talk" && talk.escape(),
  begin,
  palette: showPalette,
  view: currentView,
});
byId("shortcuts-button").addEventListener("click", showHelp);

setUpSide();
byId("key-state").textContent = key.get() ? "API key set" : "API key";
route();
const idle = globalThis.requestIdleCallback ?? setTimeout; // Safari has no idle callbacks
Promise.all([loadModels(), loadAbout()]).then(() => idle(() => loadViews().catch(() => {}))); // `route` reports it
