"""
Measure the prose of docstrings, comments and Markdown, per 1,000 words, and compare it with a baseline.

    python .ci/prose.py check             # exit 1 if a rate exceeds `ALLOWED` and its baseline; in `make lint`
    python .ci/prose.py update            # lower the baseline to the present rates
    python .ci/prose.py worst app/core    # the sentences to mend first
    python .ci/prose.py subject FILE      # exit 1 if a commit message's subject is too long or has a banned form

A noun is often clearer than "of", "that" or "what". CONTRIBUTING.md has the rule.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = Path(__file__).with_name("prose.json")
WORDS = ("of", "that", "what", "those", "which", "whose", "takes", "there", "one", "has", "so")
# Forms with a plainer alternative: "is not a", "for example", "after", a noun.
BANNED = re.compile(
    r"\bis no (?!longer\b)|\bthere (?:is|are) no\b|\b(?:is|are) such as\b|\bbehind (?:it|them|that|the)\b"
    r"|\bwhat (?:is|was|has|it|they)\b|\bthose of\b|\bthat of\b",
    re.IGNORECASE,
)
# Rates that need no baseline: 1.25 times the rates of well-written code by others.
ALLOWED = {
    "of": 22.5,
    "that": 10.6,
    "what": 0.75,
    "those": 0.5,
    "which": 4.4,
    "whose": 0.6,
    "takes": 0.9,
    "there": 2.2,
    "one": 4.0,
    "has": 5.6,
    "so": 3.7,
    "banned": 0.5,
}
MAX_SUBJECT = 60  # characters
TOLERANCE = 0.1  # occurrences in 1,000 words


def rooms(root: Path) -> dict[str, list[Path]]:
    """Return the files of each room: a folder of `app/`, the tests, the documentation."""
    found: dict[str, list[Path]] = {}
    for path in [*sorted(root.glob("*.md")), *sorted(root.glob("docs/*.md"))]:
        if path.name != "CHANGELOG.md":
            found.setdefault("docs", []).append(path)
    for top in ("app", "verify", "tests"):
        for path in sorted((root / top).rglob("*.py")):
            if not {"vendor", "node_modules", "__pycache__"} & set(path.parts):
                parts = path.relative_to(root).parts
                found.setdefault("/".join(parts[:2]) if top == "app" and len(parts) > 2 else top, []).append(path)
    return found


def rates(paths: list[Path]) -> dict[str, float]:
    """Return the occurrences of each word, and of banned forms, per 1,000 words."""
    total, counts = 0, Counter[str]()
    for sentence in (sentence for path in paths for _, text in prose(path) for sentence in sentences(text)):
        words = [word.lower() for word in re.findall(r"[A-Za-z][A-Za-z'-]*", sentence)]
        total += len(words)
        counts.update(word for word in words if word in WORDS)
        counts["banned"] += len(BANNED.findall(sentence))
    return {word: round(1000 * counts[word] / max(total, 1), 1) for word in (*WORDS, "banned")}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, comment or Markdown paragraph."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        line = 1
        for paragraph in re.split(r"(\n\n)", re.sub(r"```.*?```", _without_text, source, flags=re.DOTALL)):
            yield line, paragraph.replace("|", " ")
            line += paragraph.count("\n")
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text
    comments = [
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    ]
    for token in comments:
        if not re.match(r"#\s*(type:|noqa|pragma|!)", token.string):
            yield token.start[0], token.string.lstrip("# ")


def _without_text(block: re.Match[str]) -> str:
    """Keep the lines of a code block, so that later paragraphs keep their line numbers."""
    return "\n" * block[0].count("\n")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, with code replaced by a word."""
    for sentence in re.split(r"(?<=[.:;!?])\s+|\n\s*\n", re.sub(r"`[^`]*`", "CODE", text)):
        if words := sentence.split():
            yield " ".join(words)


def worse(measured: dict[str, dict[str, float]], baseline: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each rate above both `ALLOWED` and the baseline."""
    return [
        f"{room}: {word} {rate} per 1,000 words, must be at most {limit}"
        for room, found in measured.items()
        for word, rate in found.items()
        if rate > (limit := max(ALLOWED[word], baseline.get(room, ALLOWED)[word])) + TOLERANCE
    ]


def worst(paths: list[Path], number: int = 20) -> list[str]:
    """Return the sentences with the most such words, with their places."""
    scored = []
    for path in paths:
        for line, text in prose(path):
            for sentence in sentences(text):
                words = re.findall(r"[A-Za-z'-]+", sentence.lower())
                hits = sum(word in WORDS[:6] or word == "one" for word in words) + 3 * len(BANNED.findall(sentence))
                scored.append((hits / (len(words) + 6), f"{path.relative_to(ROOT)}:{line}: {sentence[:200]}"))
    return [text for _, text in sorted(scored, reverse=True)[:number]]


def subject_problems(message: str) -> list[str]:
    """Return the problems of a commit message's first line. Merges, reverts and fixups keep git's own subjects."""
    subject = message.partition("\n")[0].strip()
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return []
    problems = [f"must not contain {found[0]!r}" for found in BANNED.finditer(subject)]
    if len(subject) > MAX_SUBJECT:
        problems.append(f"must have at most {MAX_SUBJECT} characters, not {len(subject)}")
    if not subject[:1].isupper() or subject.endswith("."):
        problems.append("must begin with a capital letter, and not end with a period")
    return [f"Invalid subject {subject!r}: {problem}." for problem in problems]


def main(command: str = "check", *arguments: str) -> None:
    if command == "worst":
        given = [ROOT / argument for argument in arguments or ["app"]]
        paths = [path for one in given for path in ([one] if one.is_file() else sorted(one.rglob("*.py")))]
        print("\n".join(worst(paths)))
        return
    if command == "subject":
        if problems := subject_problems(Path(arguments[0]).read_text(encoding="utf-8")):
            raise SystemExit("\n".join(problems))
        return
    measured = {room: rates(paths) for room, paths in rooms(ROOT).items()}
    baseline = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else measured
    if command == "update":
        lowered = {
            room: {word: min(rate, baseline.get(room, found)[word]) for word, rate in found.items()}
            for room, found in measured.items()
        }
        BASELINE.write_text(json.dumps(lowered, indent=1) + "\n", encoding="utf-8")
    elif problems := worse(measured, baseline):
        print("\n".join(problems))
        raise SystemExit("Mend the sentences that `python .ci/prose.py worst FILE` lists.")


if __name__ == "__main__":
    main(*sys.argv[1:])
