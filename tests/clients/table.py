"""
The client table in `docs/clients.md`: passing features and versions.

    python -m tests.clients.table

writes it. Each word stands for a test. Versions come from the tests' lock files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from tests.clients.clients import CLIENTS, FRAMEWORKS, Client
from tests.clients.program import HERE

PAGE = HERE.parent.parent / "docs" / "clients.md"
HEADS = ("text", "function calls", "schema", "reasoning", "failures", "continues with", "tested by")
HEAD = f"| client | tested versions | {' | '.join(HEADS)} |"
START, END = "<!-- clients -->\n", "<!-- /clients -->\n"

# Columns, and the scenarios behind their words.
COLUMNS = {
    "text": {"whole": "text", "streamed": "stream"},
    "calls": {"whole": "tools", "streamed": "tools_streamed"},
    "schema": {"whole": "structured", "streamed": "structured_streamed"},
    "reasoning": {"whole": "thinking", "streamed": "thinking_streamed"},
    "failures": {"errors": "", "cut streams": "stream"},
}
# They are not played with frameworks.
FOR_CLIENTS = {"structured_streamed", "thinking_streamed"}


class Row(NamedTuple):
    """A client, with its section in the page."""

    section: str
    pins: tuple[str, ...]  # Node.js packages, or the packages in a Python environment; none: its requests are replayed
    continues: str
    client: Client | None = None  # None: a program
    folder: str = ""  # a program's folder, or its requests' module
    tests: Mapping[str, Mapping[str, str]] = {}  # further tests behind the words, by column

    @property
    def path(self) -> str:
        """The folder of its driver or tests, or its requests' module, within `tests`."""
        folder = self.folder or (self.client.driver.partition("/")[0] if self.client else "")
        return f"clients/{folder}" if self.pins else f"end_to_end/{folder}"

    def words(self, column: str) -> str:
        """Return the words in a column."""
        found = [*self.tests.get(column, {})]
        if self.client:
            missing = self.client.without | (FOR_CLIENTS if self.client in FRAMEWORKS.values() else frozenset())
            found = [word for word, scenario in COLUMNS[column].items() if scenario not in missing] + found
        return ", ".join(found)


ANY = "any way"
ALL = "all items"
PREVIOUS = "`previous_response_id`"
OTHERS = "Other frameworks"
_OPENAI_SCHEMAS = {"by a function": "test_instructor_gets_an_answer_by_the_call_of_a_function"}
_DSPY = "test_dspy_reads_its_own_format_and_calls_of_functions"
_CHAT_TESTS: Mapping[str, Mapping[str, str]] = {
    "text": dict.fromkeys(("whole", "streamed"), "test_chat_client_shows_text"),
    "calls": dict.fromkeys(("whole", "streamed"), "test_chat_client_calls_two_functions"),
    "schema": {"whole": "test_chat_client_reads_structured_output"},
    "failures": dict.fromkeys(("errors", "cut streams"), "test_chat_client_takes_no_broken_stream_for_an_answer"),
}
_CUT_ANSWERS = {"cut answers": "test_framework_takes_no_answer_that_breaks_off_for_a_whole_one"}

_INTERRUPTED = "test_interrupted_answer_is_not_mixed_with_the_next_ones"
_VOICE_TESTS: Mapping[str, Mapping[str, str]] = {
    "text": {"streamed": _INTERRUPTED},
    "failures": {"interruptions": _INTERRUPTED},
}

ROWS: dict[str, Row] = {
    "Codex": Row(
        "Codex",
        ("@openai/codex",),
        f"{ALL}; on a WebSocket, only new ones",
        folder="codex",
        tests={
            "text": {"streamed": "test_codex_works_for_many_turns"},
            "calls": {"streamed": "test_codex_makes_two_calls_at_once"},
            "schema": {"streamed": "test_codex_sends_an_image_and_a_schema"},
            "reasoning": {"streamed": "test_codex_shows_reasoning_and_sends_it_back_with_results"},
            "failures": {
                "errors": "test_codex_at_a_refusal_shows_its_message",
                "cut streams": "test_codex_at_a_stream_that_breaks_off_retries",
            },
        },
    ),
    "opencode": Row(
        "opencode",
        ("opencode-linux-x64-baseline",),
        ALL,
        folder="opencode",
        tests={
            "text": {"streamed": "test_opencode_writes_a_file_and_goes_on"},
            "calls": {"streamed": "test_opencode_writes_a_file_and_goes_on"},
            "failures": {
                "errors": "test_opencode_at_a_refusal_shows_its_message",
                "cut streams": "test_opencode_at_a_stream_that_breaks_off_retries",
            },
        },
    ),
    "GitHub Copilot CLI": Row(
        "GitHub Copilot CLI",
        ("@github/copilot-linux-x64",),
        f"{ALL}; on a WebSocket, only new ones",
        folder="copilot",
        tests={
            "text": {"streamed": "test_copilot_runs_a_command_and_goes_on"},
            "calls": {"streamed": "test_copilot_runs_a_command_and_goes_on"},
            "failures": {
                "errors": "test_copilot_shows_the_words_of_a_refusal",
                "cut streams": "test_copilot_retries_when_a_stream_breaks_off",
            },
        },
    ),
    "VS Code": Row(
        "VS Code",
        (),
        f"{PREVIOUS}, or {ALL}",
        folder="test_vs_code.py",
        tests={
            "text": {"streamed": "test_vs_code_text_is_shown_with_its_usage"},
            "calls": {"streamed": "test_vs_code_continues_with_results_alone"},
            "reasoning": {"streamed": "test_vs_code_thoughts_are_shown_and_sealed"},
            "failures": {
                "errors": "test_vs_code_shows_the_words_of_a_refusal",
                "cut streams": "test_vs_code_takes_no_stream_that_breaks_off_for_an_answer",
            },
        },
    ),
    "Open WebUI": Row(
        "Open WebUI",
        (),
        f"{ALL}, or {PREVIOUS}",
        folder="test_open_webui.py",
        tests={
            "text": {
                "whole": "test_open_webui_task_is_answered_whole",
                "streamed": "test_open_webui_text_is_shown_with_its_usage",
            },
            "calls": {"streamed": "test_open_webui_sends_all_messages_with_results"},
            "reasoning": {"streamed": "test_open_webui_thoughts_are_shown"},
            "failures": {
                "errors": "test_open_webui_shows_the_words_of_a_refusal",
                "cut streams": "test_open_webui_takes_no_stream_that_breaks_off_for_an_answer",
            },
        },
    ),
    "openai for Python": Row(
        "openai for Python", ("openai-3:openai", "openai-2:openai"), ANY, CLIENTS["openai-python"]
    ),
    "openai for Python, chat completions": Row(
        "openai for Python", ("openai-3:openai",), f"{ALL}, as messages", folder="openai_chat", tests=_CHAT_TESTS
    ),
    "openai for Node": Row("openai for Node", ("openai", "openai-6"), ANY, CLIENTS["openai-node"]),
    "Agents SDK for Python": Row(
        "Agents SDK for Python",
        ("openai-3:openai-agents",),
        f"{ANY}; sessions of all kinds",
        CLIENTS["agents-python"],
    ),
    "Agents SDK for Node": Row(
        "Agents SDK for Node", ("@openai/agents",), f"{ANY}; sessions of all kinds", CLIENTS["agents-node"]
    ),
    "AI SDK, provider openai": Row(
        "AI SDK, provider openai",
        ("ai", "ai-6"),
        f"`item_reference`; with `store: false`, {ALL}",
        CLIENTS["ai-sdk-openai"],
    ),
    "AI SDK, provider open-responses": Row(
        "AI SDK, provider open-responses", ("ai", "ai-6"), ALL, CLIENTS["ai-sdk-open-responses"]
    ),
    "LangChain": Row(
        "LangChain", ("openai-3:langchain-openai",), f"{ALL}, or `use_previous_response_id`", CLIENTS["langchain"]
    ),
    "LangChain, chat completions": Row(
        "LangChain", ("openai-3:langchain-openai",), f"{ALL}, as messages", folder="langchain", tests=_CHAT_TESTS
    ),
    "pydantic-ai": Row("pydantic-ai", ("openai-3:pydantic-ai-slim",), f"{ALL}, or {PREVIOUS}", CLIENTS["pydantic-ai"]),
    "LlamaIndex": Row(
        "LlamaIndex", ("openai-2:llama-index-llms-openai",), f"{ALL}, or {PREVIOUS}", CLIENTS["llama-index"]
    ),
    "LiteLLM": Row("LiteLLM", ("openai-2:litellm",), ANY, CLIENTS["litellm"]),
    "llm": Row("llm", ("openai-3:llm",), ALL, CLIENTS["llm"]),
    "Claude Code": Row(
        "Claude Code",
        ("@anthropic-ai/claude-code",),
        f"{ALL}, as messages",
        folder="claude_code",
        tests={
            "text": {"streamed": "test_claude_code_runs_commands_and_reads_files"},
            "calls": {"streamed": "test_claude_code_edits_a_file_with_a_chat_model"},
            "failures": {
                "errors": "test_claude_code_shows_a_refusal",
                "cut streams": "test_claude_code_asks_without_a_stream_when_one_breaks_off",
            },
        },
    ),
    "anthropic for Python": Row(
        "anthropic for Python",
        ("openai-3:anthropic",),
        f"{ALL}, as messages",
        FRAMEWORKS["anthropic-python"],
        tests={"calls": {"by the tool runner": "test_tool_runner_runs_without_a_thread"}},
    ),
    "LangChain, ChatAnthropic": Row(
        OTHERS, ("openai-3:langchain-anthropic",), f"{ALL}, as messages", FRAMEWORKS["langchain-anthropic"]
    ),
    "AI SDK, provider anthropic": Row(
        OTHERS, ("@ai-sdk/anthropic",), f"{ALL}, as messages", FRAMEWORKS["ai-sdk-anthropic"]
    ),
    "Agno": Row(OTHERS, ("openai-3:agno",), f"{PREVIOUS}; {ALL} with `OpenResponses`", FRAMEWORKS["agno"]),
    "DSPy": Row(
        OTHERS,
        ("openai-2:dspy",),
        ALL,
        FRAMEWORKS["dspy"],
        tests={
            "calls": {"whole": _DSPY},
            "schema": {"by a prompt": _DSPY},
            "failures": {"cut answers in its history": "test_dspy_keeps_how_an_answer_ended"},
        },
    ),
    "Google ADK": Row(
        OTHERS, ("openai-2:google-adk",), ALL, FRAMEWORKS["google-adk"], tests={"failures": _CUT_ANSWERS}
    ),
    "Haystack": Row(OTHERS, ("openai-3:haystack-ai",), f"{ALL}, or {PREVIOUS}", FRAMEWORKS["haystack"]),
    "Inspect": Row(OTHERS, ("openai-3:inspect-ai",), ALL, FRAMEWORKS["inspect"], tests={"failures": _CUT_ANSWERS}),
    "instructor": Row(
        OTHERS,
        ("openai-2:instructor",),
        ALL,
        FRAMEWORKS["instructor"],
        tests={"schema": _OPENAI_SCHEMAS, "failures": _CUT_ANSWERS},
    ),
    "LangChain for Node": Row(OTHERS, ("@langchain/openai",), ALL, FRAMEWORKS["langchain-node"]),
    "LiveKit Agents": Row(
        OTHERS,
        ("openai-3-voice:livekit-plugins-openai",),
        "only new ones, on a WebSocket",
        folder="livekit",
        tests=_VOICE_TESTS,
    ),
    "Mastra": Row(OTHERS, ("@mastra/core",), ALL, FRAMEWORKS["mastra"]),
    "Microsoft Agent Framework": Row(
        OTHERS, ("openai-3:agent-framework-openai",), PREVIOUS, FRAMEWORKS["agent-framework"]
    ),
    "pipecat": Row(
        OTHERS,
        ("openai-3-voice:pipecat-ai",),
        "only new ones, on a WebSocket",
        folder="pipecat",
        tests=_VOICE_TESTS,
    ),
    "Semantic Kernel": Row(OTHERS, ("openai-2-agents:semantic-kernel",), PREVIOUS, FRAMEWORKS["semantic-kernel"]),
    "Strands Agents": Row(OTHERS, ("openai-2-agents:strands-agents",), ALL, FRAMEWORKS["strands"]),
}


def table() -> str:
    """Return the lines of the table."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    for title, row in ROWS.items():
        cells = [
            f"[{title}](#{anchor(row.section)})",
            ", ".join(dict.fromkeys(map(version, row.pins))) or "its requests",
            *map(row.words, COLUMNS),
            row.continues,
            f"[{row.path.partition('/')[2].removesuffix('.py')}](../tests/{row.path})",
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "".join(f"{line}\n" for line in lines)


def version(pin: str) -> str:
    """Return the installed version of a package: `environment:package` for Python."""
    environment, colon, package = pin.partition(":")
    if colon:
        locked = (HERE / "requirements" / f"{environment}.txt").read_text()
        found = re.search(rf"^{re.escape(package)}==(\S+)", locked, re.M)
        assert found, pin
        return found[1]
    packages = json.loads((HERE / "package-lock.json").read_text())["packages"]
    return str(packages[f"node_modules/{pin}"]["version"])


def anchor(heading: str) -> str:
    """Return a heading's link anchor."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def with_table(page: str) -> str:
    """Return the page with the table as it is now."""
    before, _, rest = page.partition(START)
    return before + START + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
