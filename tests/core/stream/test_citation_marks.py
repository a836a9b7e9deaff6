"""Marks are taken out of a text and become annotations at their places, wherever the text is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.items import FUNCTION_CALL
from app.core.stream.citations import CitationMarks
from app.core.stream.event_types import ToolBinding
from app.core.usage import usage_of
from tests.support import laws
from tests.support.build import builder, output

A, B = ({"type": "file_citation", "file_id": id, "filename": f"{id}.txt"} for id in "ab")
SOURCES = {"1": A, "2": B, "3": A}


def with_sources() -> CitationMarks:
    marks = CitationMarks()
    marks.add(SOURCES)
    return marks


def split(*pieces: str) -> tuple[str, list[tuple[int, str]]]:
    """Return the remaining text, and each citation's position and file."""
    marks = with_sources()
    text, cited = "", []
    for piece in pieces:
        for found in marks.feed(piece):
            if isinstance(found, str):
                assert found
                text += found
            else:
                cited.append((len(text), str(found["file_id"])))
    return text + marks.end(), cited


@pytest.mark.parametrize(
    ("written", "text", "cited"),
    [
        ("Bread needs yeast【1】.", "Bread needs yeast.", [(17, "a")]),
        ("Bread needs yeast 【1】.", "Bread needs yeast.", [(17, "a")]),
        ("Yeast 【1】 and salt 【2】.", "Yeast and salt.", [(5, "a"), (14, "b")]),
        ("Yeast 【1】and salt.", "Yeast and salt.", [(5, "a")]),
        ("Yeast【1】【2】.", "Yeast.", [(5, "a"), (5, "b")]),
        ("Yeast【1】 【2】.", "Yeast.", [(5, "a"), (5, "b")]),
        ("Yeast【1, 2】.", "Yeast.", [(5, "a"), (5, "b")]),
        ("Yeast【1】【3】.", "Yeast.", [(5, "a")]),
        ("Yeast【1】. Salt【3】.", "Yeast. Salt.", [(5, "a"), (11, "a")]),
        ("Yeast【2†bread.txt】.", "Yeast.", [(5, "b")]),
        ("【1】Yeast", "Yeast", [(0, "a")]),
        ("Yeast【1】", "Yeast", [(5, "a")]),
        ("Yeast 【1】", "Yeast", [(5, "a")]),
        # Unknown numbers are not marks.
        ("Yeast 【9】.", "Yeast 【9】.", []),
        ("Yeast 【1, 9】.", "Yeast 【1, 9】.", []),
        ("【重要】 1 【", "【重要】 1 【", []),
        ("【 1 】", "【 1 】", []),
        ("【1", "【1", []),
        ("[1] (2)", "[1] (2)", []),
        ("  ", "  ", []),
        ("【【1】】", "【】", [(1, "a")]),
    ],
)
def test_marks_become_annotations(written: str, text: str, cited: list[tuple[int, str]]) -> None:
    assert split(written) == (text, cited)
    assert split(*written) == (text, cited)


PIECES = ["【", "】", "1", "2", "9", ", ", "†", "a", ".", " ", "【1】", "【2†b.txt】", "\n", "【3】 "]
ALPHABET = st.lists(st.sampled_from(PIECES), max_size=30)


def test_mark_within_what_began_as_one_is_found() -> None:
    assert split("【1†【1】") == split("【1†", "【1】") == ("【1†", [(3, "a")])


@given(ALPHABET, st.data())
def test_marks_of_any_cut_are_the_same(parts: list[str], data: Any) -> None:
    written = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    pieces = [written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert split(*pieces) == split(written)


@given(st.text(alphabet="ab 1【】.\n", max_size=60))
def test_text_without_known_marks_is_unchanged(text: str) -> None:
    marks = CitationMarks()
    assert "".join(str(found) for found in marks.feed(text)) + marks.end() == text


def test_text_that_may_be_a_mark_is_held_back() -> None:
    marks = with_sources()
    assert marks.feed("a") == ["a"]
    assert marks.feed("b 【") == ["b"]
    assert marks.feed("x") == [" 【x"]
    assert marks.feed("【1†" + "y" * 101) == ["【1†" + "y" * 101]


def test_spaces_held_back_are_bounded() -> None:
    marks = with_sources()
    emitted = [piece for _ in range(1000) for piece in marks.feed("    ")]
    assert len("".join(map(str, emitted))) == 3700
    assert marks.feed("【1】")[0] == SOURCES["1"]
    assert marks.end() == ""


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["text", "text", "text", "reasoning", "refusal", "call"]), st.sampled_from(PIECES)),
    max_size=30,
)


@given(OPERATIONS)
def test_stream_laws_hold_for_text_held_back(operations: list[tuple[str, str]]) -> None:
    made = builder()
    made.cite(SOURCES)
    made.start()
    written: list[str] = []
    for operation, piece in operations:
        if operation == "call":
            made.close_call(made.call(f"call_{len(written)}", ToolBinding(FUNCTION_CALL, {"name": "f"})))
        else:
            getattr(made, operation)(piece)
        written.append(piece if operation == "text" else "\0")
    made.complete()
    made.response["usage"] = usage_of(None, {}, [])
    made.end()
    events = made.pop_events().events()
    laws.check(events)
    texts = [
        part["text"] for item in output(events) for part in item.get("content", ()) if part["type"] == "output_text"
    ]
    assert "".join(texts).replace(" ", "") == "".join(split(run)[0] for run in "".join(written).split("\0")).replace(
        " ", ""
    )


def test_logprobs_of_text_held_back_are_kept() -> None:
    made = builder()
    made.cite(SOURCES)
    made.start()
    for piece in ("a", " ", "【", "x"):
        made.text(piece, logprobs=[{"token": piece}])
    made.complete()
    made.end()
    (item,) = output(made.pop_events().events())
    part = item["content"][0]
    assert part["text"] == "a 【x"
    assert [one["token"] for one in part["logprobs"]] == ["a", " ", "【", "x"]
