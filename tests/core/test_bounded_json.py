"""Limits on values and texts in JSON documents, and encoding of values without a JSON form."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.request_body import load_json
from app.core import bounded_json
from app.core.bounded_json import (
    LARGE,
    MANY,
    JSONTooLarge,
    check_values,
    dumps,
    is_large,
    loads_repaired,
)
from app.errors import InvalidRequest

TEXTS = st.text(
    st.one_of(
        st.sampled_from('"\\/\n\t \x00a{}[],:é你😀'), st.characters(exclude_categories=["Cs"]), st.sampled_from("du8")
    ),
    max_size=60,
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_json, "_CHUNK", 12)


def refused(piece: bytes) -> bytes:
    raise AssertionError(piece)


@settings(max_examples=200)
@given(VALUES, st.booleans(), st.booleans())
def test_values_are_counted_for_any_cut_of_the_document(value: Any, ascii: bool, text: bool) -> None:
    document: Any = json.dumps(value, ensure_ascii=ascii)
    values = _count(value)
    check_values(document if text else document.encode(), limit=values)
    with pytest.raises(JSONTooLarge) if len(document) >= values else contextlib.nullcontext():
        check_values(document if text else document.encode(), limit=values - 1)


def _count(value: Any) -> int:
    """Count the values; an empty object or array twice."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if inner is None else 2 if not inner else 1 + sum(map(_count, inner))


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["\\ud83d", "\\uDe00", "\\\\", "\\n", "ud83d", "a?", "😀", '\\"', "\\u0022"]), max_size=40)
)
def test_surrogate_halves_are_mended_for_any_cut(parts: list[str]) -> None:
    document = '{"input": "' + "".join(parts) + '"}'
    expected = json.loads(document)["input"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    pieces = loads_repaired(document.encode(), _mended)
    assert pieces["input"] == expected == load_json(document.encode(), "body")["input"]


def _mended(piece: bytes) -> bytes:
    """Mend as an independent reading does: json.loads keeps halves, UTF-16 replaces them."""
    text = json.loads(piece)
    if not isinstance(text, str):
        return orjson.dumps({name: _whole(inner) for name, inner in text.items()})
    return orjson.dumps(_whole(text))


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_texts_that_take_many_times_their_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_json, "_TEXT_BYTES", 1000)
    assert loads_repaired(orjson.dumps(["a" * 10_000]), refused)
    assert loads_repaired(orjson.dumps(["😀" * 1000]), refused)
    with pytest.raises(JSONTooLarge):
        loads_repaired(orjson.dumps(["a" * 1000 + "😀"]), refused)
    with pytest.raises(InvalidRequest, match="many times their size") as refusal:
        load_json(orjson.dumps({"input": "a" * 1000 + "😀"}), "body")
    assert refusal.value.status == 413


def test_value_without_a_form_in_json_is_mended() -> None:
    value = {
        "n": [2**70, -(2**70), 10**400, 1.5, True],
        "half \ud83d": ("\ude00", "\ud83d\ude00"),
        "no": [object(), None],
    }
    mended = {
        "n": [2.0**70, -(2.0**70), None, 1.5, True],
        "half \ufffd": ["\ufffd", "\U0001f600"],
        "no": [None, None],
    }
    assert json.loads(dumps(value)) == mended
    endless: list[Any] = []
    endless.append(endless)
    assert dumps(endless).startswith(b"[[[[")


MESSAGE = {"role": "user", "content": [{"type": "text", "text": "a" * 1000}]}


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ([MESSAGE] * 100, False),
        ([MESSAGE] * (LARGE // 1000 + 1), True),
        ("a" * (LARGE // 2), False),
        ([1] * (MANY // 2), False),
        ([1] * (MANY + 2), True),
        ({"a": [{}] * MANY, "b": [[]] * MANY}, True),
    ],
)
def test_document_is_large_by_its_bytes_or_its_values(value: Any, large: bool) -> None:
    assert is_large(orjson.dumps(value)) is large


def test_documents_are_large_together() -> None:
    assert not is_large(b"a" * (LARGE // 2))
    assert is_large(*[b"a" * (LARGE // 2 + 1)] * 2)
    assert is_large(*[b"[1, 2, 3]"] * MANY)
