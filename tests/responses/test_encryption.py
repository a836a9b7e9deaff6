"""Encrypted values are readable only by their caller."""

from __future__ import annotations

import base64
import string
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from app.core.history.compaction import CONTENT_MARK
from app.core.history.resource import new_response
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder
from app.core.stream.reasoning_fields import ReasoningEncryption
from app.core.types.request import CreateResponse, Event
from app.errors import InvalidRequest, Warnings
from app.responses.encryption import (
    MAX_CONTENT,
    ContentCipher,
    decrypt_items,
)
from app.responses.generate import finish_response
from tests.support import laws
from tests.support.build import call, counted, delta, deltas_of, querying, story, whole
from tests.support.logs import records_of

CIPHER = ContentCipher(["the secret"])
THOUGHT = {"upstream": {"reasoning_content": "The user wants a greeting."}}
KEY = "0" * 24


def decrypted(cipher: ContentCipher, kind: Any, owner: str, encrypted: str) -> Any:
    compressed = cipher.decrypt(kind, owner, encrypted)
    return None if compressed is None else orjson.loads(zstandard.ZstdDecompressor().decompress(compressed))


def is_refused(cipher: ContentCipher, kind: Any, owner: str, encrypted: str) -> bool:
    try:
        return cipher.decrypt(kind, owner, encrypted) is None
    except ValueError:
        return True


def test_encrypted_content_is_decrypted() -> None:
    encrypted = CIPHER.encrypt("reasoning", "alice", THOUGHT)

    assert decrypted(CIPHER, "reasoning", "alice", encrypted) == THOUGHT
    assert decrypted(ContentCipher(["the secret"]), "reasoning", "alice", encrypted) == THOUGHT  # after a restart


def test_encrypted_content_is_opaque_and_never_the_same_twice() -> None:
    one, other = (CIPHER.encrypt("reasoning", "alice", THOUGHT) for _ in range(2))

    assert one != other
    assert one.startswith(CONTENT_MARK)
    assert b"greeting" not in base64.urlsafe_b64decode(one.removeprefix(CONTENT_MARK) + "==")


def test_encrypted_content_of_long_reasoning_is_shorter_than_it() -> None:
    thought_fields = {"upstream": {"reasoning_content": "The user asks for the weather, so I call get_weather. " * 100}}

    assert len(CIPHER.encrypt("reasoning", "alice", thought_fields)) < 300


@pytest.mark.parametrize(("kind", "owner"), [("reasoning", "bob"), ("compaction", "alice")])
def test_encrypted_content_is_bound_to_its_owner_and_kind(kind: Any, owner: str) -> None:
    with pytest.raises(ValueError):
        CIPHER.decrypt(kind, owner, CIPHER.encrypt("reasoning", "alice", THOUGHT))


@given(st.data())
def test_encrypted_content_that_was_changed_is_refused(data: st.DataObject) -> None:
    encrypted = CIPHER.encrypt("compaction", "alice", {"summary": "We launch on Tuesday."})
    position = data.draw(st.integers(0, len(encrypted) - 1))
    other = data.draw(st.characters().filter(lambda character: character != encrypted[position]))

    assert is_refused(CIPHER, "compaction", "alice", encrypted[:position] + other + encrypted[position + 1 :])


@given(st.integers(0, 200))
def test_encrypted_content_that_was_cut_is_refused(length: int) -> None:
    encrypted = CIPHER.encrypt("compaction", "alice", {"summary": "We launch on Tuesday."})

    assert is_refused(CIPHER, "compaction", "alice", encrypted[: min(length, len(encrypted) - 1)])


def test_encryption_keys_rotate() -> None:
    old = ContentCipher(["old"]).encrypt("reasoning", "alice", THOUGHT)
    both = ContentCipher(["new", "old"])
    new = both.encrypt("reasoning", "alice", THOUGHT)

    assert decrypted(both, "reasoning", "alice", old) == THOUGHT
    assert decrypted(ContentCipher(["new"]), "reasoning", "alice", new) == THOUGHT
    assert ContentCipher(["new"]).decrypt("reasoning", "alice", old) is None


def test_encryption_without_a_key_makes_one_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    cipher = ContentCipher()
    assert not records_of(caplog, "app")

    for _ in range(2):
        cipher.encrypt("reasoning", "alice", THOUGHT)
    assert caplog.text.count("ANTIPHON_SECRET_KEY") == 1
    assert decrypted(cipher, "reasoning", "alice", cipher.encrypt("reasoning", "alice", THOUGHT)) == THOUGHT
    assert ContentCipher().decrypt("reasoning", "alice", cipher.encrypt("reasoning", "alice", THOUGHT)) is None


# Encryption and decryption in items.


def opened(items: list[dict[str, Any]], owner: str = "alice", **options: Any) -> tuple[Any, Any, list[str]]:
    warnings = Warnings()
    found, upstream_fields = decrypt_items(
        items, CIPHER, owner, key=KEY, known=options.get("known", {}), warnings=warnings
    )
    return found, upstream_fields, [*warnings]


def reasoning(encrypted: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "encrypted_content": encrypted, **fields}


def test_encrypted_reasoning_is_decrypted_under_its_id() -> None:
    item = reasoning(CIPHER.encrypt("reasoning", "alice", THOUGHT), id="rs_1")

    assert opened([item]) == ([item], {"rs_1": THOUGHT["upstream"]}, [])


@pytest.mark.parametrize("calls", [{}, {"c1": {"extra_content": {"x": 1}}}], ids=["alone", "with a call"])
def test_encrypted_reasoning_of_an_earlier_version_is_decrypted(calls: dict[str, Any]) -> None:
    content = {"said": THOUGHT["upstream"], **({"calls": calls} if calls else {})}
    items = [reasoning(CIPHER.encrypt("reasoning", "alice", content), id="rs_1")]
    items += [{"type": "function_call", "id": "fc_1", "call_id": name} for name in calls]

    assert opened(items)[1] == {"rs_1": THOUGHT["upstream"], **({"fc_1": calls["c1"]} if calls else {})}


def test_encrypted_item_without_an_id_gets_one() -> None:
    [item], upstream_fields, _ = opened([reasoning(CIPHER.encrypt("reasoning", "alice", THOUGHT))])

    assert item["id"].startswith("rs_") and item["id"].endswith(KEY)
    assert upstream_fields == {item["id"]: THOUGHT["upstream"]}


GONE = ContentCipher(["gone"])


@pytest.mark.parametrize(
    "encrypted",
    ["gAAAAABpM0Yj-of-another-server=", GONE.encrypt("reasoning", "alice", THOUGHT)],
    ids=["another server", "a key that is gone"],
)
def test_encrypted_reasoning_of_another_server_is_skipped_with_a_warning(encrypted: str) -> None:
    assert opened([reasoning(encrypted)]) == (
        [reasoning(encrypted)],
        {},
        ["Encrypted reasoning that this server cannot read was dropped."],
    )


def test_reasoning_without_encrypted_content_is_as_written() -> None:
    assert opened([reasoning(None), reasoning("")]) == ([reasoning(None), reasoning("")], {}, [])


def test_stored_reasoning_is_not_decrypted() -> None:
    item = reasoning("unreadable", id="rs_1")

    assert opened([item], known={"rs_1": {"reasoning": "Known."}}) == ([item], {}, [])


MINE = CIPHER.encrypt("compaction", "alice", {"summary": "We launch on Tuesday."})


@pytest.mark.parametrize(
    ("item", "owner"),
    [
        (reasoning(CIPHER.encrypt("reasoning", "alice", THOUGHT)[:-4] + "AAAA"), "alice"),
        (reasoning(CIPHER.encrypt("reasoning", "alice", THOUGHT)), "bob"),
        ({"type": "compaction", "encrypted_content": MINE[:-4] + "AAAA"}, "alice"),
        ({"type": "compaction", "encrypted_content": MINE}, "bob"),
    ],
)
def test_encrypted_content_changed_or_foreign_is_refused_with_its_field(item: dict[str, Any], owner: str) -> None:
    hello = {"type": "message", "role": "user", "content": "hello"}

    with pytest.raises(InvalidRequest) as refused:
        opened([hello, item], owner)

    assert (refused.value.status, refused.value.code) == (400, "invalid_encrypted_content")
    assert refused.value.param == "input[1].encrypted_content"


@pytest.mark.parametrize(
    "encrypted",
    ["gAAAAABpM0Yj-of-another-server=", GONE.encrypt("compaction", "alice", {})],
    ids=["another server", "a lost key"],
)
def test_compaction_that_cannot_be_decrypted_stays_as_it_is(encrypted: str) -> None:
    item = {"type": "compaction", "encrypted_content": encrypted}

    assert opened([item]) == ([item], {}, [])  # the translation says so to the model and the caller


def test_compaction_that_is_decrypted_gives_its_summary() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": MINE}

    assert opened([item]) == ([item], {"cmp_1": {"summary": "We launch on Tuesday."}}, [])


# From a backend's stream to the items of the client, and back.


def answer(*chunks: dict[str, Any]) -> list[Event]:
    response = new_response(CreateResponse(model="m", input="hi"), response_id="resp_0", created_at=1, model="m")
    builder = EventBuilder(
        response,
        new_id=counted(),
        clock=lambda: 2.0,
        encryption=ReasoningEncryption(lambda content: CIPHER.encrypt("reasoning", "alice", content)),
    )
    reader = DeltaReader(builder)
    builder.start()
    reader.feed(deltas_of(whole(*chunks)))
    finish_response(querying(reader), reader.ended, None)
    builder.end()
    events = builder.pop_events().events()
    laws.check(events)
    return events


def replayed(events: list[Event], *, with_ids: bool = True) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The output as sent back by a client that only keeps the items."""
    items = events[-1]["response"]["output"]
    if not with_ids:
        items = [{name: value for name, value in item.items() if name != "id"} for item in items]
    found, upstream_fields, warnings = opened(items)
    assert warnings == []
    return found, upstream_fields


def signed(id: str, signature: str | None) -> dict[str, Any]:
    chunk = call(0, id, "look", "{}")
    if signature:
        fragment = chunk["choices"][0]["delta"]["tool_calls"][0]
        fragment["extra_content"] = {"google": {"thought_signature": signature}}
    return chunk


def test_encrypted_reasoning_has_the_backends_name_for_it() -> None:
    events = answer(delta(reasoning="Let me "), delta(reasoning="think."), delta(content="Hello."))
    items, upstream_fields = replayed(events)

    assert [item["type"] for item in items] == ["reasoning", "message"]
    assert upstream_fields == {items[0]["id"]: {"reasoning": "Let me think."}}


@pytest.mark.parametrize("with_ids", [True, False])
def test_call_signature_comes_back_with_the_reasoning_before_it(with_ids: bool) -> None:
    events = answer(delta(reasoning_content="I look."), signed("c1", "abc"))
    items, upstream_fields = replayed(events, with_ids=with_ids)

    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    assert upstream_fields == {
        items[0]["id"]: {"reasoning_content": "I look."},
        items[1]["id"]: {"extra_content": {"google": {"thought_signature": "abc"}}},
    }


@pytest.mark.parametrize("with_ids", [True, False])
def test_call_signature_without_reasoning_gets_an_empty_item(with_ids: bool) -> None:
    events = answer(delta(content="I look."), signed("c1", "abc"))
    items, upstream_fields = replayed(events, with_ids=with_ids)

    assert story(events).split().count("output_item.added") == 3
    assert [item["type"] for item in items] == ["message", "reasoning", "function_call"]
    assert items[1]["summary"] == [] and "content" not in items[1]
    assert upstream_fields[items[2]["id"]] == {"extra_content": {"google": {"thought_signature": "abc"}}}


def test_call_signature_that_comes_late_gets_an_item_of_its_own() -> None:
    late = {"type": "reasoning.encrypted", "data": "abc", "index": 1}
    events = answer(delta(reasoning="I think."), delta(content="Hello."), delta(reasoning_details=[late]))
    items, upstream_fields = replayed(events)

    assert [item["type"] for item in items] == ["reasoning", "message", "reasoning"]
    assert upstream_fields == {items[0]["id"]: {"reasoning": "I think."}, items[2]["id"]: {"reasoning_details": [late]}}


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize(
    "call",
    [
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x"},
        {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "add"}},
    ],
    ids=lambda call: call["type"],
)
def test_call_signature_comes_back_with_a_call_of_any_kind(call: dict[str, Any], with_ids: bool) -> None:
    beside = {"extra_content": {"google": {"thought_signature": "abc"}}}
    encrypted = CIPHER.encrypt("reasoning", "alice", {"upstream": {}, "calls": {"c1": beside}})
    items, upstream_fields, _ = opened([reasoning(encrypted), {**call, "id": "its_own"} if with_ids else call])

    assert upstream_fields[items[1]["id"]] == beside
    assert (items[1]["id"] == "its_own") is with_ids


def test_tool_search_that_ran_elsewhere_has_no_id() -> None:
    call = {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}}
    encrypted = CIPHER.encrypt("reasoning", "alice", {"upstream": {}, "calls": {"c1": {"extra_content": {}}}})

    assert opened([reasoning(encrypted, id="rs_1"), call])[0] == [reasoning(encrypted, id="rs_1"), call]


def test_calls_without_a_signature_add_nothing() -> None:
    items, upstream_fields = replayed(answer(signed("c1", None)))

    assert [item["type"] for item in items] == ["function_call"]
    assert upstream_fields == {}


def test_encrypted_content_has_one_spelling() -> None:
    """The last character can have unused bits."""
    texts = (CIPHER.encrypt("reasoning", "alice", {"upstream": {"reasoning": "x" * length}}) for length in range(1, 9))
    encrypted = next(text for text in texts if len(text.removeprefix(CONTENT_MARK)) % 4)
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    other = encrypted[:-1] + letters[letters.index(encrypted[-1]) ^ 1]

    assert len({base64.urlsafe_b64decode(one.removeprefix(CONTENT_MARK) + "==") for one in (encrypted, other)}) == 1
    with pytest.raises(ValueError):
        CIPHER.decrypt("reasoning", "alice", other)


def test_stored_call_is_as_stored() -> None:
    encrypted = CIPHER.encrypt("reasoning", "alice", {"upstream": {}, "calls": {"c1": {"extra_content": {"x": 1}}}})
    looks = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}

    assert opened([reasoning(encrypted, id="rs_1"), looks], known={"fc_1": {}})[1] == {"rs_1": {}}


def test_encrypted_content_of_a_request_is_bounded() -> None:
    encrypted = CIPHER.encrypt("reasoning", "alice", {"upstream": {"reasoning_content": "so " * 1_000_000}})
    item = {"type": "reasoning", "summary": [], "encrypted_content": encrypted}
    assert len(encrypted) < 1000  # which is the point: the request is small
    fitting = MAX_CONTENT // 3_000_100

    decrypt_items([item] * fitting, CIPHER, "alice", key=KEY, known={}, warnings=Warnings())
    with pytest.raises(InvalidRequest) as error:
        decrypt_items([item] * 1000, CIPHER, "alice", key=KEY, known={}, warnings=Warnings())
    assert (error.value.status, error.value.code) == (400, "encrypted_content_too_large")
    assert error.value.param == f"input[{fitting}].encrypted_content"
    assert "32 MiB" in error.value.message
