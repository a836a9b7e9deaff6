// Pictures in their natural proportions, with buttons to enlarge and download them.

import { openModal } from "./dialog.js";
import { button, h, icon } from "./dom.js";
import { blobOf, saveBlob } from "./save.js";

/** @param {string} source a `data:` URL @param {string} label alternative text */
export function pictureView(source, label) {
  const extension = /^data:image\/(\w+)/.exec(source)?.[1].replace("jpeg", "jpg") ?? "png";
  const image = h("img", { class: "picture", src: source, alt: label, on: { click: () => zoom(source, label) } });
  return h(
    "span",
    { class: "picture-frame" },
    image,
    h(
      "span",
      { class: "picture-buttons" },
      button(icon("maximize-2"), () => zoom(source, label), {
        class: "only",
        "aria-label": `Enlarge: ${label}`,
        title: "Enlarge",
      }),
      button(icon("download"), () => saveBlob(blobOf(source), `image.${extension}`), {
        class: "only",
        "aria-label": `Download: ${label}`,
        title: "Download",
      }),
    ),
  );
}

function zoom(source, label) {
  const dialog = h(
    "dialog",
    { class: "zoom", "aria-label": label },
    h("img", { src: source, alt: label }),
    button(icon("x"), () => dialog.close(), { class: "only", "aria-label": "Close the picture" }),
  );
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  openModal(dialog);
}
