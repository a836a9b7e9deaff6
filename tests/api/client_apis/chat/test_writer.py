from __future__ import annotations

import json
from typing import Any

import pytest

from app.api.client_apis.chat.writer import ChatWriter
from app.core.stream.event_types import CONTENT_REASONING
from app.core.stream.replay import replayed_events

URL = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 1, "end_index": 3}
FILE = {"type": "container_file_citation", "container_id": "c", "file_id": "f", "start_index": 0, "end_index": 1}


def text(written: str, *annotations: Any, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": written, "annotations": [*annotations], "logprobs": [], **fields}
    return {"id": f"msg_{written}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def refusal(written: str) -> dict[str, Any]:
    part = {"type": "refusal", "refusal": written}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def response(*output: Any, status: str = "completed", reason: str | None = None) -> Any:
    details = {"incomplete_details": {"reason": reason}} if reason else {}
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7,
    }
    head = {"id": "resp_1", "created_at": 1, "model": "m", "status": status, "service_tier": "flex"}
    return {**head, "output": [*output], "usage": usage, **details}


def written(final: Any, *, include_usage: bool = False) -> tuple[dict[str, Any], list[Any]]:
    """The JSON answer, and the chunks of the stream, for a response."""
    writer = ChatWriter(include_usage=include_usage)
    events = replayed_events(final, CONTENT_REASONING).events()
    body = b"".join(writer.event(event) for event in events[:-1]) + writer.end(final)
    frames = [frame.removeprefix("data: ") for frame in body.decode().split("\n\n")]
    return writer.document(final), [json.loads(frame) for frame in frames if frame.startswith("{")]


def message_of(document: dict[str, Any]) -> Any:
    return document["choices"][0]["message"]


def deltas(chunks: list[Any], field: str) -> list[Any]:
    found = [choice["delta"].get(field) for chunk in chunks for choice in chunk["choices"]]
    return [value for value in found if value]


def test_messages_are_joined_by_an_empty_line_and_citations_keep_their_places() -> None:
    document, chunks = written(response(text("Look."), text("It is.", URL, FILE)))
    assert message_of(document)["content"] == "".join(deltas(chunks, "content")) == "Look.\n\nIt is."
    (citation,) = message_of(document)["annotations"]
    assert deltas(chunks, "annotations") == [[citation]]
    assert citation == {
        "type": "url_citation",
        "url_citation": {"start_index": 8, "end_index": 10, "title": "A", "url": "https://a.example"},
    }


@pytest.mark.parametrize("model", ["\\", '"\\"', "%s"])
def test_model_of_any_name_is_in_each_chunk(model: str) -> None:
    document, chunks = written({**response(text("Hi")), "model": model})
    assert {document["model"], *(chunk["model"] for chunk in chunks)} == {model}


def test_refusal_is_not_content() -> None:
    document, chunks = written(response(refusal("No.")))
    assert (message_of(document)["content"], message_of(document)["refusal"]) == (None, "No.")
    assert deltas(chunks, "refusal") == ["No."]
    assert not deltas(chunks, "content")


CALL = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (response(text("Hi")), "stop"),
        (response(text("Hi"), CALL), "tool_calls"),
        (response(text("Hi"), CALL, status="incomplete", reason="max_output_tokens"), "length"),
        (response(text("Hi"), status="incomplete", reason="max_output_seconds"), "length"),
        (response(status="incomplete", reason="content_filter"), "content_filter"),
    ],
)
def test_finish_reason_is_that_of_the_response(final: Any, reason: str) -> None:
    document, chunks = written(final)
    assert document["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == reason


def test_usage_is_in_the_stream_where_it_was_requested() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    document, chunks = written(response(text("Hi")), include_usage=True)
    assert document["usage"] == chunks[-1]["usage"] == usage
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert not any("usage" in chunk for chunk in written(response(text("Hi")))[1])


def test_service_tier_is_returned() -> None:
    document, chunks = written(response(text("Hi")))
    assert document["service_tier"] == chunks[-1]["service_tier"] == "flex"


def test_call_that_needs_an_approval_is_explained() -> None:
    request = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "lab", "name": "add", "arguments": "{}"}
    document, chunks = written(response(text("Wait."), request))
    content = message_of(document)["content"]
    assert content == "".join(deltas(chunks, "content"))
    assert content.startswith("Wait.\n\nThe call of add of lab was not made")
    assert document["choices"][0]["finish_reason"] == "stop"


def test_generated_image_is_an_image_of_the_message() -> None:
    item = {
        "id": "ig_1",
        "type": "image_generation_call",
        "status": "completed",
        "result": "AA==",
        "output_format": "webp",
    }
    document, chunks = written(response(item))
    image = {"type": "image_url", "image_url": {"url": "data:image/webp;base64,AA=="}}
    assert message_of(document)["images"] == [image]
    assert deltas(chunks, "images") == [[{"index": 0, **image}]]


def test_hosted_calls_are_not_shown() -> None:
    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    document, chunks = written(response(search, text("Hi")))
    assert "tool_calls" not in message_of(document)
    assert not deltas(chunks, "tool_calls")
