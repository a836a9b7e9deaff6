// Files that code has written in a container: each can be looked at and downloaded.

import { download, getJson } from "../lib/api.js";
import { announce, button, h, icon } from "../lib/dom.js";
import { bytes as size } from "../lib/tables.js";
import { cut, plain } from "../lib/text.js";

const LONGEST = 100_000; // characters of a preview
const IMAGES = /^image\/(png|jpe?g|gif|webp|avif)$/;
const TEXTS = /^text\/|[/+](json|xml|yaml|javascript|csv)$/;
const TYPES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };

// The files that the text of an answer cites; null if it cites none.
export function citedFiles(annotations) {
  const files = new Map(
    annotations.filter(({ type }) => type === "container_file_citation").map((file) => [file.file_id, file]),
  );
  if (!files.size) return null;
  return h(
    "div",
    { class: "written" },
    h("p", { class: "label" }, "Files"),
    h(
      "ul",
      { class: "file-list" },
      [...files.values()].map((file) => fileView(file.container_id, { id: file.file_id, name: file.filename })),
    ),
  );
}

// All files of a container, which are listed when they are asked for.
export function containerFiles(container) {
  const list = h("ul", { class: "file-list" });
  const listed = async ({ target }) => {
    if (!target.open) return;
    list.replaceChildren(h("li", { class: "note pulse" }, "Listing…"));
    try {
      const { data } = await getJson(`containers/${container}/files?limit=100`);
      list.replaceChildren(
        ...(data.length
          ? data.map((file) =>
              fileView(container, { id: file.id, name: file.path.split("/").at(-1), bytes: file.bytes }),
            )
          : [h("li", { class: "note" }, "No files.")]),
      );
    } catch (error) {
      list.replaceChildren(
        h(
          "li",
          { class: "note" },
          error.status === 404 ? "The container and its files have expired." : plain(error.message),
        ),
      );
    }
  };
  return h("details", { on: { toggle: listed } }, h("summary", {}, "Container files"), list);
}

/**
 * @param {string} container
 * @param {{id: string, name: string, bytes?: number}} file
 */
function fileView(container, { id, name, bytes }) {
  const path = `containers/${container}/files/${id}/content`;
  const preview = h("div", { class: "file-preview", hidden: true });
  const problem = h("p", { class: "problem", role: "alert" });
  const attempt = (work) => async () => {
    problem.textContent = "";
    try {
      await work();
    } catch (error) {
      problem.textContent =
        error.status === 404 ? "The file no longer exists: its container has expired." : error.message;
    }
  };
  const show = button(
    [icon("eye"), "Preview"],
    attempt(async () => {
      if (preview.hidden && !preview.hasChildNodes()) preview.append(await previewOf(await download(path), name));
      preview.hidden = !preview.hidden;
      show.setAttribute("aria-expanded", !preview.hidden);
    }),
    { class: "quiet", "aria-expanded": "false", "aria-label": `Preview ${plain(name)}` },
  );
  return h(
    "li",
    {},
    h(
      "div",
      { class: "file-row" },
      icon("file"),
      h("span", { class: "file-name" }, plain(name)),
      bytes === undefined ? null : h("span", { class: "note" }, size(bytes)),
      h("span", { class: "spring" }),
      show,
      button(
        [icon("download"), "Download"],
        attempt(() => save(path, name)),
        { class: "quiet", "aria-label": `Download ${plain(name)}` },
      ),
    ),
    preview,
    problem,
  );
}

async function previewOf(blob, name) {
  const type = TYPES[name.split(".").at(-1).toLowerCase()] ?? blob.type;
  if (IMAGES.test(type))
    return h("img", { class: "picture", src: await dataUrl(new Blob([blob], { type })), alt: plain(name) });
  const text = await blob.text();
  if (!TEXTS.test(type) && text.includes("\0")) return h("p", { class: "note" }, `Binary file, ${size(blob.size)}.`);
  return h(
    "pre",
    { class: "json", tabindex: 0, role: "region", "aria-label": `Content of ${plain(name)}` },
    plain(cut(text, LONGEST)),
  );
}

async function save(path, name) {
  const url = URL.createObjectURL(await download(path));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser reads it when it wants to
  announce(`${name} downloaded.`);
}

// A file or Blob as a `data:` URL.
export function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
