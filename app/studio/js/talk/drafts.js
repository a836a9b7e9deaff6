// Unsent messages by conversation, kept across reloads of a tab: texts and options in sessionStorage, attachments in
// IndexedDB because they can exceed sessionStorage's quota.

const TEXTS = "antiphon.drafts"; // {conversation: {text, options, edits: {response: text}}}
const TAB = "antiphon.tab"; // random name of this tab, the prefix of its IndexedDB keys
const DATABASE = "antiphon-drafts";
const EXPIRES = 7 * 24 * 3600 * 1000; // ms; files of closed tabs are deleted later

/** @returns {Object<string, {text?: string, options?: any, files?: boolean, edits?: Object<string, string>}>} */
function all() {
  return JSON.parse(sessionStorage.getItem(TEXTS) ?? "{}");
}

function write(drafts) {
  try {
    sessionStorage.setItem(TEXTS, JSON.stringify(drafts));
  } catch {
    // The text exceeds the quota: it stays in the field, but does not survive a reload.
  }
}

function tab() {
  const name = sessionStorage.getItem(TAB) ?? crypto.getRandomValues(new Uint32Array(2)).join("-");
  sessionStorage.setItem(TAB, name);
  return name;
}

export const drafts = {
  /** Return a conversation's draft. */
  get: (conversation) => all()[conversation] ?? {},

  /** Merge fields into a conversation's draft; empty fields are removed. */
  set(conversation, fields) {
    const { [conversation]: before, ...rest } = all();
    const kept = Object.entries({ ...before, ...fields }).filter(([, value]) => value);
    write(kept.length ? { ...rest, [conversation]: Object.fromEntries(kept) } : rest);
  },

  /** Keep the unsent edit of the message before a response; null removes it. */
  setEdit(conversation, response, text) {
    const { [response]: _, ...rest } = this.get(conversation).edits ?? {};
    const edits = text === null ? rest : { ...rest, [response]: text };
    this.set(conversation, { edits: Object.keys(edits).length ? edits : null });
  },

  /** Rename a draft after its conversation has received an id. */
  async move(from, to) {
    const { [from]: moved, ...rest } = all();
    if (!moved) return;
    write({ ...rest, [to]: { ...rest[to], ...moved } });
    if (moved.files) await this.setFiles(to, await this.files(from));
  },

  /** Load a conversation's attachments: [{name, url}] with `data:` URLs. */
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

/** Delete expired files of closed tabs. */
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

// Run one IndexedDB request; null if the browser has no storage, for example in private windows.
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
