// The server's API, with the caller's key.

// The page is at `…/studio`, and the API beside it, whatever stands before that in the path.
const ROOT = new URL(".", document.baseURI);
const KEY = "antiphon.key";
const SLICE = 8; // ms of parsing at once

export const baseUrl = new URL("v1", ROOT).href;
export const serverUrl = (path) => new URL(path, ROOT).href;

// The key is kept in this tab alone, and goes with it.
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(message, { status = 0, type = "", code = "", param = null, requestId = "", retryAfter = "" } = {}) {
    super(message);
    Object.assign(this, { status, type, code, param, requestId, retryAfter, at: Date.now() });
  }
}

/**
 * @param {string} path
 * @param {{method?: string, body?: any, signal?: AbortSignal}} [options]
 */
async function request(path, { method = "GET", body, signal } = {}) {
  const headers = { Accept: "application/json, text/event-stream" };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(`${baseUrl}/${path}`, { method, headers, body: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", { code: "connection_failed" });
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let error = {};
  try {
    error = (await answer.json()).error ?? {};
  } catch {
    // not ours: a proxy's page, perhaps
  }
  return new ApiError(error.message ?? `The server answered ${answer.status}.`, {
    status: answer.status,
    type: error.type,
    code: error.code,
    param: error.param,
    requestId: answer.headers.get("x-request-id") ?? "",
    retryAfter: answer.headers.get("retry-after") ?? "",
  });
}

export async function getJson(path) {
  return (await request(path)).json();
}

export async function send(method, path, body) {
  return (await request(path, { method, body })).json();
}

// The content of a file, as a Blob.
export async function download(path) {
  return (await request(path)).blob();
}

// Upload a file; `onprogress` is called with the share that has been sent.
export function upload(file, onprogress, signal) {
  return new Promise((resolve, reject) => {
    const sent = new XMLHttpRequest(); // fetch tells nothing of its progress
    sent.open("POST", `${baseUrl}/files`);
    sent.responseType = "json";
    if (key.get()) sent.setRequestHeader("Authorization", `Bearer ${key.get()}`);
    sent.upload.addEventListener("progress", ({ loaded, total }) => onprogress(total ? loaded / total : 0));
    sent.addEventListener("load", () => {
      if (sent.status < 300) resolve(sent.response);
      else
        reject(
          new ApiError(sent.response?.error?.message ?? `The server answered ${sent.status}.`, {
            status: sent.status,
            ...sent.response?.error,
          }),
        );
    });
    sent.addEventListener("error", () =>
      reject(new ApiError("The server cannot be reached.", { code: "connection_failed" })),
    );
    sent.addEventListener("abort", () => reject(new ApiError("The upload was stopped.", { code: "aborted" })));
    signal?.addEventListener("abort", () => sent.abort());
    const form = new FormData();
    form.append("purpose", "assistants");
    form.append("file", file);
    sent.send(form);
  });
}

/**
 * Ask for a stream. Each batch is the list of [raw JSON, event] of one read; an answer that comes as JSON is `response`.
 * @param {string} path
 * @param {{method?: string, body?: any, signal?: AbortSignal}} [options]
 * @returns {Promise<{warnings: string, requestId: string, response?: any, batches: AsyncGenerator<[string, any][]>}>}
 */
export async function stream(path, { method = "GET", body, signal } = {}) {
  const answer = await request(path, { method, body, signal });
  const head = {
    warnings: answer.headers.get("x-antiphon-warning") ?? "",
    requestId: answer.headers.get("x-request-id") ?? "",
  };
  if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) {
    return { ...head, response: await answer.json(), batches: none() };
  }
  return { ...head, batches: events(answer.body) };
}

/** @returns {AsyncGenerator<[string, any][]>} */
async function* none() {}

// Parses in batches of some `SLICE` ms. Between batches, the browser can draw and handle input: buffered reads would
// otherwise follow one another without a pause.
/** @returns {AsyncGenerator<[string, any][]>} */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let began = performance.now();
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      /** @type {[string, any][]} */
      let batch = [];
      for (const frame of frames) {
        const data = dataOf(frame);
        if (data && data !== "[DONE]") batch.push([data, JSON.parse(data)]);
        if (performance.now() - began < SLICE) continue;
        if (batch.length) yield batch;
        batch = [];
        await new Promise(afterTask);
        began = performance.now();
      }
      if (batch.length) yield batch;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection to the server was lost.", { code: "connection_lost" });
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Call a function in a task of its own. Unlike timers, those of a hidden page are not delayed.
function afterTask(work) {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = work;
  port2.postMessage(null);
}

function dataOf(frame) {
  const start = frame.startsWith("data: ") ? 0 : frame.indexOf("\ndata: ") + 1;
  return frame.startsWith("data: ", start) ? frame.slice(start + 6) : "";
}
