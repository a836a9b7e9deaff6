"""Grammars without recursion become regular expressions; others do not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.request.grammar import pattern

# As Codex sends it.
APPLY_PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCH = """\
*** Begin Patch
*** Add File: a dir/"quoted" \\ 😀.txt
+He said "hello" \\ and\tleft
+
*** Update File: b.txt
*** Move to: c.txt
@@ def f():
 keep
-old
+new
@@
+more
*** End of File
*** Delete File: d.txt
*** End Patch"""


def fits(grammar: str, text: str) -> bool:
    """Tell if a text matches a grammar, by either pattern."""
    plain, escaped = (pattern("lark", grammar, form) for form in ("pattern", "json_pattern"))
    assert plain and escaped
    answers = {bool(re.search(plain, text)), bool(re.search(escaped, json.dumps(text, ensure_ascii=False)[1:-1]))}
    assert len(answers) == 1
    return answers.pop()


@pytest.mark.parametrize("text", [PATCH, f"{PATCH}\n"])
def test_patch_matches_the_grammar(text: str) -> None:
    assert fits(APPLY_PATCH, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Here is the patch:\n" + PATCH,
        PATCH.replace("+more", "more"),
        PATCH.replace("*** End Patch", ""),
        PATCH.replace("*** Add File", "*** Create File"),
        "*** Begin Patch\n*** End Patch",
        json.dumps({"input": PATCH}),
    ],
)
def test_text_that_is_no_patch_does_not_match(text: str) -> None:
    assert not fits(APPLY_PATCH, text)


def test_patch_with_other_escapes_matches() -> None:
    escaped = pattern("lark", APPLY_PATCH, "json_pattern")
    assert escaped and re.search(escaped, json.dumps(PATCH)[1:-1])


@pytest.mark.parametrize(
    ("grammar", "plain", "escaped"),
    [
        ('start: "a" line+\nline: /.+/ LF\n%import common.LF', r"^(a([^\n]+\n)+)$", None),
        ('start: "a" | "b"', "^(a|b)$", "^(a|b)$"),
        ('start: ("a" | "b") "c"', "^((a|b)c)$", "^((a|b)c)$"),
        ('?start: [sign] DIGIT~1..3 // a number\nsign: "-"\nDIGIT: /[0-9]/', "^((-)?([0-9]){1,3})$", None),
        ('start: "{"\n    | "\\n" -> end', "^(\\{|\\n)$", r"^(\{|\\n)$"),
        ("start: /a\\/b/", "^(a/b)$", "^(a/b)$"),
        ("start: WORD\n%import common.CNAME -> WORD", "^([A-Z_a-z][0-9A-Z_a-z]*)$", "^([A-Z_a-z][0-9A-Z_a-z]*)$"),
    ],
)
def test_grammar_has_its_pattern(grammar: str, plain: str, escaped: str | None) -> None:
    assert pattern("lark", grammar) == plain
    assert escaped is None or pattern("lark", grammar, "json_pattern") == escaped


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "a|b",
        'start: "(" start ")" | "x"',
        'start: one\none: two "x"\ntwo: "y" one | "z"',
        "start: missing",
        'start: "a"i',
        "start: /a/i",
        'start: "a"\n%ignore " "',
        "start: X\n%import python.NAME -> X",
        'start: ("a"',
        'start: "a")',
        "start: /(?=a)b/",
        "start: /[z-a]/",
        'start: "a"\nother: _sep{"a"}',
        'start: "a" ~ 9000',
        'start: "\\N{nothing}"',
        "\n".join(["start: r0", *(f"r{at}: r{at + 1} r{at + 1}" for at in range(60)), 'r60: "a"']),
        "start: " + "(" * 5000 + '"a"' + ")" * 5000,
        f'start: "a" ~ {"9" * 5000}',
        f"start: /a{{{'9' * 5000}}}/",
    ],
)
def test_grammar_that_is_not_regular_has_no_pattern(grammar: str) -> None:
    assert pattern("lark", grammar) is None


@pytest.mark.parametrize(
    "text",
    [
        *("(?=a)", r"\bword", r"(a)\1", "a**", "*a", "(a", "a)", "[a", "a^b", r"\Z", "(?i)a", "a{3,1}", "a{9999}"),
        *("a{,3}", "a{,}", "a{ 2 }", "x{2}{3}", "(ab){2}{3}", "{2}", "x*{2}"),
    ],
)
def test_grammar_that_a_server_may_read_otherwise_has_no_pattern(text: str) -> None:
    assert pattern("regex", text, "json_pattern") is None


@pytest.mark.parametrize("text", [r"a\{2\}", "[{]2}", '{"a"}', "a{b}", "{}"])
def test_brace_that_is_no_repetition_is_a_brace(text: str) -> None:
    plain = pattern("regex", text, "json_pattern")
    assert plain and "\\{" in plain


# Codex's grammar for code.
EXEC = r"""
start: pragma_source | plain_source
pragma_source: PRAGMA_LINE NEWLINE SOURCE
plain_source: SOURCE

PRAGMA_LINE: /[ \t]*\/\/ @exec:[^\r\n]*/
NEWLINE: /\r?\n/
SOURCE: /[\s\S]+/
"""


def test_grammar_of_code_matches_anything() -> None:
    escaped = pattern("lark", EXEC, "json_pattern")
    assert escaped
    for code in ("x", '// @exec: {"a": 1}\nawait tools.run({cmd: "ls \\\\ 😀"})\r\n'):
        assert re.search(escaped, json.dumps(code, ensure_ascii=False)[1:-1])
    assert not re.search(escaped, "")
    assert pattern("lark", EXEC) is None  # engines do not agree on how to say that


@pytest.mark.parametrize(
    ("grammar", "supported"),
    [
        ('start: "a" "\\n"', True),  # there is always something to escape
        ('start: ("a" LF)+ | "\\""\n%import common.LF', True),
        ("start: /[a-z]+/ | /[0-9]{2}/", True),  # there never is
        ('start: "a" ("\\n" "b")*', False),
        ('start: "a" | "\\n"', False),
        ("start: /.+/", False),
        (EXEC, False),
        (APPLY_PATCH, True),
    ],
)
def test_xgrammar_gets_what_it_supports_and_refuses_the_rest(grammar: str, supported: bool) -> None:
    assert pattern("lark", grammar, "xgrammar") == (pattern("lark", grammar, "json_pattern") if supported else None)


TEXTS = st.text(st.sampled_from('ab01_ -]"\\\n\t.é😀'), max_size=6)


@given(
    st.sampled_from(
        [r"a*", r"[ab]+", r"\d{2,}", r"[^a\n]{1,3}", r".+", r'"[^"]*"', r"\\|\.", r"(?:a|b\.)+?", r"\w\W\s?"]
    ),
    TEXTS,
)
def test_regular_expression_matches_a_text_and_its_json(regex: str, text: str) -> None:
    whole = bool(re.fullmatch(regex, text, re.ASCII))
    for form, subject in (("pattern", text), ("json_pattern", json.dumps(text, ensure_ascii=False)[1:-1])):
        written: Any = pattern("regex", regex, form)
        assert bool(re.fullmatch(written, subject)) is whole


def test_dash_at_the_end_of_a_class_is_a_dash() -> None:
    plain = pattern("regex", "[ac-]+")
    assert plain
    assert [bool(re.search(plain, text)) for text in ("a-c", "-", "b", "]")] == [True, True, False, False]
