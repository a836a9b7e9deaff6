"""The programs in `docs/clients.md` work as printed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients.answers import saying
from tests.clients.opencode.test_opencode import OFFLINE
from tests.clients.program import HERE, PACKAGES, Ended, installed, interpreter, run
from tests.clients.table import ROWS, with_table
from tests.support.message_events import MessagesUpstream, message_stream, text_block
from tests.support.serving import antiphon
from tests.support.upstream import Upstream

ROOT = HERE.parent.parent
DOCS = (ROOT / "docs" / "clients.md").read_text()
ADDRESS = "http://127.0.0.1:8080/v1"

# Heading: a Python program's environment, or None for Node.js.
PROGRAMS = {
    "openai for Python": "openai-3",
    "openai for Node": None,
    "Agents SDK for Python": "openai-3",
    "Agents SDK for Node": None,
    "AI SDK, provider openai": None,
    "AI SDK, provider open-responses": None,
    "LangChain": "openai-3",
    "pydantic-ai": "openai-3",
    "LlamaIndex": "openai-2",
    "LiteLLM": "openai-2",
}
OTHERS = {
    *("Codex", "opencode", "GitHub Copilot CLI", "VS Code", "Open WebUI", "llm"),
    *("Claude Code", "anthropic for Python", "Other frameworks"),
}


def section(heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", DOCS, re.M | re.S)
    assert found, f"docs/clients.md has no section {heading!r}."
    return found[1]


def block(heading: str, language: str) -> str:
    """Return a section's program in some language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", section(heading), re.M | re.S)
    assert found, f"There is no {language} in the section {heading!r} of docs/clients.md."
    return found[1]


def test_table_is_that_of_the_drivers() -> None:
    assert with_table(DOCS) == DOCS, "run `python -m tests.clients.table`"
    assert {row.section for row in ROWS.values()} == {*PROGRAMS, *OTHERS}
    for row in ROWS.values():
        assert section(row.section)
    drivers = {
        f"clients/{path.parent.name}" for pattern in ("*/driver.*", "*/test_*.py") for path in HERE.glob(pattern)
    }
    assert {row.path for row in ROWS.values() if row.pins} == drivers


def test_words_of_the_table_stand_for_tests() -> None:
    replayed = (HERE.parent / row.path for row in ROWS.values() if not row.pins)
    tests = "".join(path.read_text() for path in (*HERE.rglob("test_*.py"), *replayed))
    named = {test for row in ROWS.values() for words in row.tests.values() for test in words.values()}
    assert {test for test in named if f"def {test}(" not in tests} == set()


@pytest.mark.parametrize("heading", PROGRAMS)
async def test_client_program_of_the_docs_runs(heading: str, server: str, upstream: Upstream, tmp_path: Path) -> None:
    upstream.always(saying("Hello ", "there."))
    environment = PROGRAMS[heading]
    program = tmp_path / ("program.py" if environment else "program.mjs")
    program.write_text(block(heading, "python" if environment else "js").replace(ADDRESS, server))
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    by = str(interpreter(environment) / "python") if environment else "node"
    ended = await run(by, str(program), env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"}, cwd=tmp_path)
    assert ended.out.splitlines()[-1:] == ["Hello there."], ended.err  # LiteLLM praises itself before
    assert upstream.requests[-1].json["model"] == "demo"


START = (ROOT / "docs" / "start.md").read_text()
RECIPES = re.findall(r"^### (.*?)\n(?:.*?\n)??```python\n(.*?)^```", START.partition("## Recipes")[2], re.M | re.S)
# Each recipe's last printed line.
PRINTED = {
    "Structured output": r"name='Paris.*' country='.+' population=\d+",
    "Images": r".+",
    "Conversations": r"\['message', 'message', 'message', 'message'\]",
    "Background responses": r".*Count to three.*",
    "Compaction": "completed",
}


def test_recipes_are_those_of_the_page() -> None:
    assert [heading for heading, _ in RECIPES] == [*PRINTED]


@pytest.mark.parametrize(("heading", "recipe"), RECIPES, ids=[heading for heading, _ in RECIPES])
async def test_recipe_of_the_start_page_runs(heading: str, recipe: str, demo: str, tmp_path: Path) -> None:
    (setup,) = re.findall(r"^## Recipes\n.*?```python\n(.*?)^```", START, re.M | re.S)
    program = tmp_path / "program.py"
    program.write_text(setup.replace(ADDRESS, demo) + recipe)
    ended = await run(str(interpreter("openai-3") / "python"), str(program), env={}, cwd=tmp_path)
    lines = ended.out.splitlines()
    assert lines and re.fullmatch(PRINTED[heading], lines[-1]), (ended.out, ended.err)


async def test_codex_lines_of_the_docs_work(server: str, upstream: Upstream, tmp_path: Path) -> None:
    upstream.say(saying("Hello there."))
    (tmp_path / "config.toml").write_text(block("Codex", "toml").replace(ADDRESS, server))
    ended = await _node("@openai/codex/bin/codex.js", "exec", "--skip-git-repo-check", "Hello!", directory=tmp_path)
    assert ended.out == "Hello there.\n", ended.err


async def test_opencode_lines_of_the_docs_work(server: str, upstream: Upstream, tmp_path: Path) -> None:
    upstream.always(saying("Hello there."))
    (tmp_path / "opencode.json").write_text(block("opencode", "json").replace(ADDRESS, server))
    program = installed("opencode-linux-x64-baseline") / "bin" / "opencode"
    ended = await run(str(program), "run", "--pure", "--title", "A task", "Hello!", env=OFFLINE, cwd=tmp_path)
    assert "Hello there." in ended.out, ended.err


async def test_llm_lines_of_the_docs_work(server: str, upstream: Upstream, tmp_path: Path) -> None:
    upstream.say(saying("Hello there."))
    (tmp_path / "extra-openai-models.yaml").write_text(block("llm", "yaml").replace(ADDRESS, server))
    _, *arguments = block("llm", "sh").split(maxsplit=5)
    program = str(interpreter("openai-3") / "llm")
    words = [word.strip('"\n') for word in arguments]
    ended = await run(program, *words, env={"LLM_USER_PATH": str(tmp_path)}, cwd=tmp_path)
    assert ended.out == "Hello there.\n", ended.err


async def test_lines_for_copilot(server: str, upstream: Upstream, tmp_path: Path) -> None:
    upstream.say(saying("Hello there."))
    program = installed("@github/copilot-linux-x64") / "copilot"
    lines = block("GitHub Copilot CLI", "sh").replace(ADDRESS, server).replace("copilot --", f"{program} --")
    ended = await run("sh", "-c", lines, env={}, cwd=tmp_path)
    assert "Hello there." in ended.out, ended.err


@pytest_asyncio.fixture
async def messages() -> AsyncIterator[tuple[str, MessagesUpstream]]:
    """The root URL of an Antiphon with a Messages backend, and the backend."""
    async with MessagesUpstream() as up:
        up.always(message_stream(*text_block(0, "Hello ", "there.")))
        async with antiphon(backend_url=up.url, backend_overrides={"transport.messages": True}) as url:
            yield url, up


async def test_program_for_anthropic(messages: tuple[str, MessagesUpstream], tmp_path: Path) -> None:
    url, up = messages
    program = tmp_path / "program.py"
    program.write_text(block("anthropic for Python", "python").replace(ADDRESS.removesuffix("/v1"), url))
    ended = await run(str(interpreter("openai-3") / "python"), str(program), env={}, cwd=tmp_path)
    assert ended.out == "14\nHello there.\n", ended.err
    assert up.requests[-1].json["model"] == "claude-sonnet-5"


async def test_lines_for_claude_code(messages: tuple[str, MessagesUpstream], tmp_path: Path) -> None:
    url, up = messages
    lines = block("Claude Code", "sh").replace(ADDRESS.removesuffix("/v1"), url)
    program = installed("@anthropic-ai/claude-code") / "bin" / "claude.exe"
    env = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    ended = await run("sh", "-c", lines.replace("claude --print", f"{program} --print"), env=env, cwd=tmp_path)
    assert ended.out == "Hello there.\n", ended.err
    assert "x-anthropic-billing-header" not in str(up.requests[-1].json["system"])


async def _node(program: str, *arguments: str, directory: Path) -> Ended:
    return await run("node", str(PACKAGES / program), *arguments, env={"CODEX_HOME": str(directory)}, cwd=directory)
