// Renders untrusted HTML, SVG or Mermaid in a sandboxed frame with an opaque origin. Its content security policy allows
// inline scripts and styles, but no network. The text arrives by postMessage from the studio.

const tell = (message) => parent.postMessage(message, "*"); // an opaque origin cannot name a target origin

const measure = () => {
  const told = () => {
    const { body } = document;
    const bottom = body.getBoundingClientRect().bottom + 8;
    tell({ height: Math.ceil(Math.max(bottom, body.scrollHeight)) });
  };
  new ResizeObserver(told).observe(document.body);
  told();
};

const SHOW = {
  html(text) {
    document.open();
    document.write(text); // a complete page with its own scripts
    document.close();
  },

  svg(text) {
    const { documentElement } = new DOMParser().parseFromString(text, "image/svg+xml");
    document.body.append(document.adoptNode(documentElement));
  },

  async mermaid(text, dark) {
    await load("vendor/mermaid-tiny/mermaid.tiny.js");
    const { mermaid } = globalThis;
    mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: dark ? "dark" : "neutral" });
    try {
      const { svg } = await mermaid.render("diagram", text);
      document.body.innerHTML = svg;
    } catch (error) {
      document.body.textContent = `This diagram cannot be drawn: ${String(error.message).split("\n", 1)[0]}`;
    }
  },
};

function load(address) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
  });
}

addEventListener("message", async ({ source, data }) => {
  if (source !== parent || !Object.hasOwn(SHOW, data.kind)) return;
  const style = document.createElement("style");
  style.textContent = `:root { color-scheme: ${data.dark ? "dark" : "light"} } body { margin: 8px; font-family: system-ui, sans-serif } svg { max-width: 100%; height: auto }`;
  if (data.kind !== "html") document.head.append(style);
  await SHOW[data.kind](data.text, data.dark);
  measure();
});
tell({ ready: true });
