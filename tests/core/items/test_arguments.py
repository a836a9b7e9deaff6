"""Exactly extracting a custom tool's input from streamed arguments."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.items import arguments as arguments_module
from app.core.items.arguments import InputReader, ObjectReader


def fragments(*pieces: str) -> list[str]:
    """Readings of arguments in these pieces, including the last at the end."""
    reader = InputReader()
    return [*(reader.feed(piece) for piece in pieces), reader.end()]


def read(*pieces: str) -> str:
    return "".join(fragments(*pieces))


def test_text_is_emitted_as_it_arrives() -> None:
    assert fragments('{"inp', 'ut": "', "Hel", "lo\\", "n", '"', "}") == ["", "", "Hel", "lo", "\n", "", "", ""]


def test_escape_is_emitted_when_complete_and_never_half_a_pair() -> None:
    assert fragments('{"input":"\\', "u00", "e9", "\\ud83d", "\\ude", '00"}')[1:6] == ["", "é", "", "", "😀"]
    assert read('{"input": "\\ud83d"}') == "\ufffd"
    assert read('{"input": "\\ud83d', '\\n"}') == "\ufffd\n"
    assert read('{"input": "\\ude00 \\ud83d', '\\u0041"}') == "\ufffd \ufffdA"


@pytest.mark.parametrize(
    "arguments, text",
    [
        ('{"input": ""}', ""),
        ("{}", ""),
        (" { } ", ""),
        ("", ""),
        (' \n{ "input"\t:\r\n"x" } ', "x"),
        ('{"\\u0069nput": "x"}', "x"),
        ('{"input": "x", "why": "because", "n": [1, {"input": "y"}]}', "x"),
        ('{"why": "so \\"it\\" }, {", "n": [1, {"input": "y"}], "input": "x"}', "x"),
        ('{"a": -1.5e3, "b": null, "c": {}, "d": [], "input": "x"}', "x"),
        ('{"input": "x", "input": "y"}', "x"),
        ('"x\\ny"', "x\ny"),
        (' "x" ', "x"),
        ('{"input": "a\nb\tc"}', "a\nb\tc"),  # unescaped control characters
        ('{"input": "\\d\\.\\u12"}', "\\d\\.\\u12"),  # unescaped backslashes
        ('{"input": "\\/\\b\\f\\r\\t\\\\"}', "/\b\f\r\t\\"),
        (r'"{\"input\": \"ls\"}"', "ls"),
        (r'"{\"command\": \"ls\"}"', '{"command": "ls"}'),
        (r'"[\"input\"]"', '["input"]'),
    ],
)
def test_input_is_found_in_what_the_model_wrote(arguments: str, text: str) -> None:
    assert read(arguments) == text
    assert read(*arguments) == text


@pytest.mark.parametrize(
    "arguments",
    [
        "*** Begin Patch\n*** End Patch",
        "  x",
        '"use strict"; run();',
        '"unended',
        "[1, 2]",
        "null",
        "{ let x = 1; }",
        '{"input": ["x"]}',
        '{"input": null}',
        '{"patch": "x"}',
        '{"input" "x"}',
        '{"a": 1, }',
        '{"a": 1]}',
        "{'input': 'x'}",
        '```json\n{"input": "x"}\n```',
    ],
)
def test_arguments_without_an_input_are_the_input(arguments: str) -> None:
    assert read(arguments) == arguments
    assert read(*arguments) == arguments


def test_input_that_is_not_wrapped_is_emitted_as_it_arrives() -> None:
    assert fragments("*** Beg", "in Patch") == ["*** Beg", "in Patch", ""]


@pytest.mark.parametrize(
    "written, closed, cut, cut_with_the_answer",
    [
        ('{"input": "x"}', True, False, False),
        ("{}", True, False, False),
        ('{"input": "x"', False, True, True),
        ('{"input": "x', False, True, True),
        ('{"inp', False, True, True),
        ("raw", False, False, True),
        ('"raw', False, False, True),
        ("", False, False, True),
    ],
)
def test_arguments_end_is_found_with_whether_they_were_cut(
    written: str, closed: bool, cut: bool, cut_with_the_answer: bool
) -> None:
    reader = InputReader()
    reader.feed(written)
    assert reader.closed is closed
    assert reader.cut(written, broken=False) is cut
    assert reader.cut(written, broken=True) is cut_with_the_answer


def test_text_after_the_object_is_not_emitted() -> None:
    assert fragments('{"input": "x"} and', '{"input": "y"}') == ["x", "", ""]


# Laws.

LEAVES = 10  # of a value: readers know how deep they are and whether in a string, and count nothing else

texts = st.text() | st.text(alphabet='{}[]",:\\\n\tinputé😀 ', max_size=20)
others = st.dictionaries(
    st.sampled_from(["why", "n", "Input", ""]),
    st.recursive(st.none() | st.integers() | texts, st.lists, max_leaves=LEAVES),
)


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    positions = sorted({cut % (len(text) + 1) for cut in cuts})
    return [text[a:b] for a, b in zip([0, *positions], [*positions, len(text)], strict=True)]


cuts = st.lists(st.integers(0, 10_000), max_size=8)


@given(text=texts, before=others, after=others, ascii=st.booleans(), indent=st.none() | st.just(2), cuts=cuts)
def test_text_of_any_form_and_cut_is_emitted_as_it_was(
    text: str, before: Any, after: Any, ascii: bool, indent: Any, cuts: list[int]
) -> None:
    document = {**before, "input": text, **{name: value for name, value in after.items() if name not in before}}
    arguments = json.dumps(document, ensure_ascii=ascii, indent=indent)
    reader = InputReader()
    assert "".join(map(reader.feed, in_pieces(arguments, cuts))) == text
    assert (reader.closed, reader.end()) == (True, "")


@given(text=texts, cuts=cuts)
def test_emitted_text_is_the_same_for_any_cut(text: str, cuts: list[int]) -> None:
    assert read(*in_pieces(text, cuts)) == read(text)


@given(text=texts, cuts=cuts)
def test_function_arguments_are_emitted_unchanged(text: str, cuts: list[int]) -> None:
    reader = ObjectReader()
    fragments = "".join(map(reader.feed, in_pieces(text, cuts)))
    held = reader.held()
    assert bool(held) == (text.lstrip()[:1] == '"')
    assert (fragments + held == text) or (
        reader.closed and text.startswith(fragments) and fragments.rstrip().endswith(("}", "]"))
    )
    assert reader.end() == (held or ("" if text.strip() else "{}"))


@given(value=others, ascii=st.booleans(), cuts=cuts)
def test_arguments_encoded_twice_are_emitted_as_an_object(value: Any, ascii: bool, cuts: list[int]) -> None:
    arguments = json.dumps(value)
    reader = ObjectReader()
    pieces = in_pieces(json.dumps(arguments, ensure_ascii=ascii), cuts)
    assert ("".join(map(reader.feed, pieces)), reader.end()) == ("", arguments)


@pytest.mark.parametrize("arguments", ['"Paris"', '"[1]"', '"{"', '"{\\"a\\": 1', '"{}" "{}"'])
def test_string_without_an_object_is_emitted_unchanged(arguments: str) -> None:
    reader = ObjectReader()
    assert (reader.feed(arguments), reader.held(), reader.end()) == ("", arguments, arguments)


@given(value=others, behind=texts, cuts=cuts)
def test_text_after_the_arguments_is_not_emitted(value: Any, behind: str, cuts: list[int]) -> None:
    arguments = json.dumps(value)
    reader = ObjectReader()
    fragments = "".join(map(reader.feed, in_pieces(arguments + behind, cuts)))
    assert (fragments.rstrip(), reader.closed) == (arguments, True)


@pytest.mark.parametrize("arguments", ['see {"a": 1} and {"b": 2}', '[{"a": 1}] [2]', "null {} x"])
def test_arguments_that_are_no_object_are_emitted_whole(arguments: str) -> None:
    reader = ObjectReader()
    assert (reader.feed(arguments), reader.closed, reader.end()) == (arguments, False, "")


documents = st.dictionaries(
    st.sampled_from(["input", "a"]),
    st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=LEAVES),
)


@example(text='{0"\\\\"}', cuts=[4, 5])  # a piece that only completes an escape
@settings(max_examples=300)
@given(text=texts | documents.map(json.dumps) | st.tuples(documents.map(json.dumps), texts).map("".join), cuts=cuts)
def test_long_pieces_in_steps_give_the_same(text: str, cuts: list[int]) -> None:
    pieces = in_pieces(text, cuts)
    assert all(read_with(-1, reading, pieces) == read_with(10_000, reading, pieces) for reading in READERS)


READERS: list[type[ObjectReader | InputReader]] = [ObjectReader, InputReader]


def read_with(long: int, reading: type[ObjectReader | InputReader], pieces: list[str]) -> Any:
    """Return all readings; pieces longer than `long` are read in steps."""
    with mock.patch.object(arguments_module, "_LONG", long):
        reader = reading()
        emitted = [reader.feed(piece) for piece in pieces]
        return emitted, reader.closed, reader.cut(emitted, broken=False), reader.held(), reader.end()
