// Downloads of generated files.

/** @param {Blob} blob @param {string} name */
export function saveBlob(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser may still read it
}

export const saveText = (text, name, type = "text/plain") =>
  saveBlob(new Blob([text], { type: `${type};charset=utf-8` }), name);

/** Decode a base64 `data:` URL. */
export function blobOf(dataUrl) {
  const [head, content] = dataUrl.split(",", 2);
  const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type: /^data:([^;,]*)/.exec(head)?.[1] ?? "" });
}
