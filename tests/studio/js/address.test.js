import assert from "node:assert/strict";
import { test } from "node:test";
import { readAddress, replaceAddress } from "../../../app/studio/js/lib/address.js";

const read = (hash) => {
  const { view, argument, query } = readAddress(hash);
  return [view, argument, query.toString()];
};

test("address has a view, an argument and a query", () => {
  assert.deepEqual(read("#/responses/resp_1?status=failed"), ["responses", "resp_1", "status=failed"]);
  assert.deepEqual(read("#/responses?a=1"), ["responses", null, "a=1"]);
  assert.deepEqual(read("#/files/a%2Fb"), ["files", "a/b", ""]);
  assert.deepEqual(read(""), ["", null, ""]);
});

test("address with a broken escape does not throw", () => {
  assert.deepEqual(read("#/talk/%"), ["talk", "%", ""]);
});

test("address is replaced only while its view is shown", () => {
  const replaced = [];
  Object.assign(globalThis, {
    location: { hash: "#/responses" },
    history: { replaceState: (_state, _title, hash) => replaced.push(hash) },
    HashChangeEvent: Event,
    dispatchEvent: () => true,
  });
  replaceAddress("#/responses?text=a");
  replaceAddress("#/compare?ids=resp_1,resp_2");
  assert.deepEqual(replaced, ["#/responses?text=a"]);
});
