// Unsent messages, by conversation, so that they survive a reload of their tab: texts and options in sessionStorage,
// attached files in IndexedDB, since those can be larger than what sessionStorage holds.

const TEXTS = "antiphon.drafts"; // {conversation: {text, options}}
const TAB = "antiphon.tab"; // a random name for this tab, by which its files are found again
const DATABASE = "antiphon-drafts";
const EXPIRES = 7 * 24 * 3600 * 1000; // ms after which the files of tabs that were closed are deleted

/** @returns {Object<string, {text?: string, options?: any, files?: boolean}>} */
function all() {
  return JSON.parse(sessionStorage.getItem(TEXTS) ?? "{}");
}

function write(drafts) {
  try {
    sessionStorage.setItem(TEXTS, JSON.stringify(drafts));
  } catch {
    // The text is larger than the browser's quota: it stays in the field, but not over a reload.
  }
}

function tab() {
  const name = sessionStorage.getItem(TAB) ?? crypto.getRandomValues(new Uint32Array(2)).join("-");
  sessionStorage.setItem(TAB, name);
  return name;
}

export const drafts = {
  /** What is kept for a conversation. */
  get: (conversation) => all()[conversation] ?? {},

  /** Keep fields of a conversation's draft; fields that are empty are forgotten. */
  set(conversation, fields) {
    const { [conversation]: before, ...rest } = all();
    const kept = Object.entries({ ...before, ...fields }).filter(([, value]) => value);
    write(kept.length ? { ...rest, [conversation]: Object.fromEntries(kept) } : rest);
  },

  /** The conversation is known by another name from now on. */
  async move(from, to) {
    const { [from]: moved, ...rest } = all();
    if (!moved) return;
    write({ ...rest, [to]: { ...rest[to], ...moved } });
    if (moved.files) await this.setFiles(to, await this.files(from));
  },

  /** The attached files of a conversation: [{name, url}] with `data:` URLs. */
  async files(conversation) {
    if (!all()[conversation]?.files) return [];
    const found = await request("readonly", (store) => store.get(`${tab()}/${conversation}`));
    return found?.files ?? [];
  },

  async setFiles(conversation, files) {
    this.set(conversation, { files: files.length > 0 });
    const key = `${tab()}/${conversation}`;
    await request("readwrite", (store) =>
      files.length ? store.put({ files, at: Date.now() }, key) : store.delete(key),
    );
  },
};

/** Delete the files of tabs that were closed long ago. */
export async function forgetOldFiles() {
  await request("readwrite", (store) => {
    const cursor = store.openCursor();
    cursor.addEventListener("success", () => {
      if (!cursor.result) return;
      if (cursor.result.value.at < Date.now() - EXPIRES) cursor.result.delete();
      cursor.result.continue();
    });
  });
}

// The result of one request on the store of files; null where the browser has no storage, as in some private windows.
async function request(mode, make) {
  try {
    const opening = indexedDB.open(DATABASE, 1);
    opening.addEventListener("upgradeneeded", () => opening.result.createObjectStore("files"));
    await ended(opening, "success");
    const transaction = opening.result.transaction("files", mode);
    const asked = make(transaction.objectStore("files"));
    await ended(transaction, "complete");
    opening.result.close();
    return asked?.result ?? null;
  } catch {
    return null;
  }
}

function ended(target, event) {
  return new Promise((resolve, reject) => {
    target.addEventListener(event, resolve);
    target.addEventListener("error", () => reject(target.error));
  });
}
