"""Responses as Anthropic messages: single answers. The laws are in `test_stream_laws.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.api.client_apis.messages.writer import MessagesWriter
from app.core.items import CUSTOM_TOOL_CALL, FUNCTION_CALL, ITEM_TYPES, MCP_APPROVAL_REQUEST
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import ToolBinding
from app.core.stream.reasoning_fields import ReasoningEncryption
from tests.api.client_apis.messages.test_stream_laws import EVENT, MESSAGE
from tests.support.build import builder
from tests.support.message_stream import accumulated, frames

USAGE = {
    "input_tokens": 110,
    "input_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 20},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 117,
}
WEATHER = ToolBinding(FUNCTION_CALL, {"name": "weather"})


def finished(
    write: Callable[[EventBuilder], object],
    *,
    reason: str | None = None,
    stop_sequence: str | None = None,
    options: Mapping[str, Any] = {},
    usage: Any = USAGE,
) -> tuple[Any, list[Any]]:
    """Return the message and events for an answer that is incomplete for this reason."""
    made = builder(encryption=ReasoningEncryption(lambda content: "antiphon1.sealed"))
    made.start()
    write(made)
    made.response["usage"] = usage
    if reason:
        made.incomplete(reason)
    else:
        made.complete()
    made.end()
    *events, _ = made.pop_events().events()
    writer = MessagesWriter(**options)
    body = b"".join(map(writer.event, events)) + writer.end(made.response, stop_sequence)
    document, written = writer.document(made.response, stop_sequence), frames(body)
    assert accumulated(body) == document
    for event in written:
        EVENT.validate_python(event)
    MESSAGE.validate_python(document)
    return document, written


def content(write: Callable[[EventBuilder], object], **how: Any) -> Any:
    return finished(write, **how)[0]["content"]


def calls_of(made: EventBuilder, *arguments: str) -> None:
    made.arguments(made.call("toolu_1", WEATHER), *arguments)


def test_text_is_a_block_of_a_message_with_the_usage() -> None:
    message, events = finished(lambda made: made.text("Hel", "lo"))
    assert message == {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 80,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 3},
            "service_tier": "standard",
        },
    }
    names = "message_start content_block_start content_block_delta content_block_delta content_block_stop"
    assert [event["type"] for event in events] == [*names.split(), "message_delta", "message_stop"]


def test_thinking_ends_with_its_signature() -> None:
    def write(made: EventBuilder) -> None:
        made.reasoning("Hm", ".")
        made.text("Hi")

    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "antiphon1.sealed"}
    assert content(write) == [thinking, {"type": "text", "text": "Hi"}]
    hidden = {"type": "redacted_thinking", "data": "antiphon1.sealed"}
    assert content(write, options={"shows_thinking": False}) == [hidden, {"type": "text", "text": "Hi"}]


def test_parts_of_a_summary_are_one_block_of_paragraphs() -> None:
    def write(made: EventBuilder) -> None:
        made.reasoning_summary("One.")
        made.begin_part()
        made.reasoning_summary("Two.")

    (block,) = content(write)
    assert block["thinking"] == "One.\n\nTwo."


def test_reasoning_without_text_is_redacted() -> None:
    def write(made: EventBuilder) -> None:
        made.call("toolu_1", WEATHER, extra_content={"signature": "x"})

    redacted, call = content(write)
    assert redacted == {"type": "redacted_thinking", "data": "antiphon1.sealed"}
    assert call == {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}


def test_call_ends_the_turn_of_the_model() -> None:
    message, events = finished(lambda made: calls_of(made, '{"place":', ' "Paris"}'))
    assert message["content"] == [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Paris"}}]
    assert message["stop_reason"] == "tool_use"
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"place":', ' "Paris"}')]


def test_cut_tool_name_is_written_whole() -> None:
    binding = ToolBinding(FUNCTION_CALL, {"name": "short"})
    (block,) = content(lambda made: made.call("toolu_1", binding), options={"names": {"short": "the_long_one"}})
    assert block["name"] == "the_long_one"


def test_interleaved_calls_are_blocks_one_after_the_other() -> None:
    def write(made: EventBuilder) -> None:
        first, second = made.call("a", WEATHER), made.call("b", WEATHER)
        for pieces in ("{", '"x"', ": 1}"):
            made.arguments(first, pieces)
            made.arguments(second, pieces)
        made.close_call(second)
        made.text("Wait.")
        made.close_call(first)

    blocks = content(write)
    assert [block["type"] for block in blocks] == ["tool_use", "tool_use", "text"]
    assert [block["input"] for block in blocks[:2]] == [{"x": 1}] * 2


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("max_output_tokens", "max_tokens"), ("content_filter", "refusal")],
)
def test_incomplete_response_has_its_reason(reason: str, stop: str) -> None:
    message, _ = finished(lambda made: made.text("Hel"), reason=reason)
    assert message["stop_reason"] == stop


def test_truncated_call_ends_at_the_limit_of_tokens() -> None:
    message, _ = finished(lambda made: calls_of(made, '{"place": "Par'), reason="max_output_tokens")
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][0]["input"] == {}


def test_stop_sequence_is_named() -> None:
    message, _ = finished(lambda made: made.text("1, 2"), stop_sequence="3")
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "3")


def test_refusal_is_text_with_its_reason() -> None:
    message, _ = finished(lambda made: made.refusal("I can't."))
    assert message["content"] == [{"type": "text", "text": "I can't."}]
    assert message["stop_reason"] == "refusal"
    assert message["stop_details"] == {"type": "refusal", "category": None, "explanation": "I can't."}


def test_annotations_are_citations() -> None:
    def write(made: EventBuilder) -> None:
        made.text("See X.")
        made.annotation({"type": "url_citation", "url": "https://x", "title": "X", "start_index": 4, "end_index": 5})
        made.annotation({"type": "file_citation", "file_id": "file_1", "filename": "a.txt", "index": 4})

    (block,) = content(write)
    web, file = block["citations"]
    assert (web["type"], web["url"], web["title"]) == ("web_search_result_location", "https://x", "X")
    assert (file["type"], file["source"], file["title"]) == ("search_result_location", "file_1", "a.txt")


def test_calls_of_unknown_types_are_left_out() -> None:
    binding = ToolBinding(CUSTOM_TOOL_CALL, {"name": "f"})
    assert content(lambda made: made.arguments(made.call("c", binding), '{"input": "x"}')) == []


def test_answer_without_text_has_no_blocks() -> None:
    assert content(lambda made: made.text("")) == []


def hosted(made: EventBuilder, kind: str, status: str, arguments: str = "", **fields: Any) -> None:
    binding = ToolBinding(ITEM_TYPES[kind], {"server_label": "lab", "name": "add"} if kind == "mcp_call" else {})
    call = made.call("c", binding)
    made.arguments(call, arguments)
    made.close_call(call)
    made.end_call(call, status, fields)


ACTION = {"type": "search", "query": "x"}
FETCH = {"type": "open_page", "url": "https://x"}
FOUND = {"type": "text_result", "url": "https://x", "title": "X", "snippet": "..."}
SEARCHES = {"web_search_requests": 1, "web_fetch_requests": 0}
FETCHES = {"web_search_requests": 0, "web_fetch_requests": 1}


@pytest.mark.parametrize(
    ("kind", "status", "fields", "use", "result", "usage"),
    [
        (
            "web_search_call",
            "completed",
            {"action": ACTION, "results": [FOUND]},
            ("server_tool_use", "web_search", {"query": "x"}),
            ("web_search_tool_result", ["https://x"]),
            SEARCHES,
        ),
        (
            "web_search_call",
            "failed",
            {"action": ACTION},
            ("server_tool_use", "web_search", {"query": "x"}),
            ("web_search_tool_result", "unavailable"),
            SEARCHES,
        ),
        (
            "web_search_call",
            "completed",
            {"action": FETCH},
            ("server_tool_use", "web_fetch", {"url": "https://x"}),
            ("web_fetch_tool_result", "https://x"),
            FETCHES,
        ),
        (
            "code_interpreter_call",
            "completed",
            {"code": "1", "outputs": [{"type": "logs", "logs": "1\n"}]},
            ("server_tool_use", "code_execution", {"code": "1"}),
            ("code_execution_tool_result", "1\n"),
            None,
        ),
        (
            "mcp_call",
            "completed",
            {"output": "2"},
            ("mcp_tool_use", "add", {"a": 1}),
            ("mcp_tool_result", "2"),
            None,
        ),
    ],
)
def test_hosted_call_is_a_pair_of_blocks(
    kind: str, status: str, fields: Any, use: Any, result: Any, usage: Any
) -> None:
    arguments = '{"a": 1}' if kind == "mcp_call" else ""
    message, _ = finished(lambda made: hosted(made, kind, status, arguments, **fields))
    first, second = message["content"]
    assert (first["type"], first["name"], first["input"]) == use
    assert (second["type"], _shown(second["content"])) == result
    assert first["id"] == second["tool_use_id"]
    assert message["usage"].get("server_tool_use") == usage
    assert message["stop_reason"] == "end_turn"


def test_call_that_requires_an_approval_is_one_that_failed() -> None:
    binding = ToolBinding(MCP_APPROVAL_REQUEST, {"server_label": "lab", "name": "add"})

    def write(made: EventBuilder) -> None:
        call = made.call("c", binding)
        made.arguments(call, '{"a": 1}')
        made.close_call(call)

    message, _ = finished(write)
    use, result = message["content"]
    assert (use["name"], use["server_name"], use["input"]) == ("add", "lab", {"a": 1})
    assert result["is_error"] and "approval" in result["content"][0]["text"]
    assert message["stop_reason"] == "end_turn"


def _shown(content: Any) -> Any:
    if isinstance(content, list):
        return content[0]["text"] if content[0]["type"] == "text" else [found["url"] for found in content]
    return content.get("error_code") or content.get("url") or content.get("stdout")
