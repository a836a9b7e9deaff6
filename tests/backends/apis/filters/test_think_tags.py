"""Thoughts in the text: the same, however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backends.apis.filters import ThinkTagFilter
from app.core.profile import ThinkTagOptions
from app.core.types.deltas import Delta, ReasoningDelta, TextDelta


def parts(deltas: list[Delta]) -> tuple[str, str]:
    """Reasoning and text."""
    thoughts = ["".join(delta.texts) for delta in deltas if isinstance(delta, ReasoningDelta)]
    texts = ["".join(delta.texts) for delta in deltas if isinstance(delta, TextDelta)]
    return "".join(thoughts), "".join(texts)


def split(
    *texts: str, implicit: bool = False, structured: str = "", tags: tuple[str, str] = ("<think>", "</think>")
) -> tuple[str, str]:
    tag_filter = ThinkTagFilter(ThinkTagOptions("implicit_open" if implicit else "auto", *tags))
    if structured:
        tag_filter.feed([ReasoningDelta([structured])])
    deltas = [delta for text in texts for delta in tag_filter.feed([TextDelta([text])])]
    return parts([*deltas, *tag_filter.end()])


AUTO = {
    "a thought and a text": ("<think>hm</think>Hi", ("hm", "Hi")),
    "real newlines": ("<think>\nhm\n</think>\n\nHi", ("\nhm\n", "\n\nHi")),
    "blanks before the tag": (" \n<think>hm</think>Hi", ("hm", "Hi")),
    "no thought": ("Hi <think>there</think>", ("", "Hi <think>there</think>")),
    "blanks before the text": (" \n Hi", ("", " \n Hi")),
    "an empty thought": ("<think></think>Hi", ("", "Hi")),
    "tags in the middle": ("<think>hm</think>Hi <think>no</think>", ("hm", "Hi <think>no</think>")),
    "a look-alike": ("<thinking>hm</thinking>", ("", "<thinking>hm</thinking>")),
    "half a tag": ("<thi", ("", "<thi")),
    "half a tag at the end of a thought": ("<think>hm</thi", ("hm</thi", "")),
    "a look-alike in a thought": ("<think>a</thing></think>b", ("a</thing>", "b")),
    "never closed": ("<think>hm, hm", ("hm, hm", "")),
    "only the closing tag": ("hm</think>Hi", ("", "hm</think>Hi")),
    "only blanks": (" \n", ("", " \n")),
    "nothing": ("", ("", "")),
}
IMPLICIT = {
    "the opening tag was in the prompt": ("hm</think>Hi", ("hm", "Hi")),
    "it comes all the same": ("\n<think>hm</think>Hi", ("hm", "Hi")),
    "no tag at all": ("hm", ("hm", "")),
    "half a tag": ("<thi", ("<thi", "")),
}


@pytest.mark.parametrize(("text", "expected"), AUTO.values(), ids=AUTO)
def test_reasoning_at_the_beginning_is_taken_out(text: str, expected: tuple[str, str]) -> None:
    assert split(text) == split(*text) == expected


@pytest.mark.parametrize(("text", "expected"), IMPLICIT.values(), ids=IMPLICIT)
def test_reasoning_opened_in_the_prompt_is_taken_out(text: str, expected: tuple[str, str]) -> None:
    assert split(text, implicit=True) == split(*text, implicit=True) == expected


TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", "</thi", " ", "\n", "hm", "\u00e9"])).map(
    "".join
)


@given(TEXTS, st.lists(st.integers(0, 40)), st.booleans(), st.sampled_from(["", "hm", "hm hm"]))
def test_reasoning_is_the_same_for_any_cut(text: str, cuts: list[int], implicit: bool, structured: str) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert split(*pieces, implicit=implicit, structured=structured) == split(
        text, implicit=implicit, structured=structured
    )


@given(TEXTS)
def test_text_loses_nothing_but_tags_and_the_blanks_before_them(text: str) -> None:
    thought, rest = split(text)
    left = text.lstrip().removeprefix("<think>") if "<think>" in text else text
    assert thought + rest in (text, left, left.replace("</think>", "", 1))


def test_reasoning_is_emitted_before_its_tag_is_closed() -> None:
    tag_filter = ThinkTagFilter(ThinkTagOptions())
    assert tag_filter.feed([TextDelta(["<think>hm, "])]) == [ReasoningDelta(["hm, "])]
    assert tag_filter.feed([TextDelta(["well<"])]) == [ReasoningDelta(["well"])]
    assert tag_filter.feed([TextDelta(["b"])]) == [ReasoningDelta(["<b"])]


def test_think_tags_can_be_others() -> None:
    assert split(*"[THINK]hm[/THINK]Hi", tags=("[THINK]", "[/THINK]")) == ("hm", "Hi")


def test_tags_that_repeat_the_reasoning_field_are_dropped() -> None:
    assert split(*"<think>\nhm, well\n</think>Hi", structured="hm, well") == ("", "Hi")


def test_tags_beside_a_reasoning_field_are_text() -> None:
    assert split(*"<think>is a tag</think>", structured="hm") == ("", "<think>is a tag</think>")
    assert split(*"Hi", structured="hm") == ("", "Hi")
    assert split(*"<think>hm", structured="hm") == ("", "<think>hm")


def test_text_held_back_is_text_when_something_else_follows() -> None:
    tag_filter = ThinkTagFilter(ThinkTagOptions())
    assert tag_filter.feed([TextDelta(["<th"])]) == []
    assert tag_filter.end() == [TextDelta(["<th"])]
    assert tag_filter.feed([TextDelta(["ink>"])]) == [TextDelta(["ink>"])]
