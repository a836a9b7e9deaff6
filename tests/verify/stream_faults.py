"""Faults of streams."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

from tests.verify.broken_server import Events, Json, Reply, Sent, in_reply, in_stream, of_type, without

CREATED, IN_PROGRESS, COMPLETED = "response.created", "response.in_progress", "response.completed"
ADDED, DONE = "response.output_item.added", "response.output_item.done"
PART_ADDED, PART_DONE = "response.content_part.added", "response.content_part.done"
DELTA, TEXT_DONE = "response.output_text.delta", "response.output_text.done"
UNFINISHED = ("tools.call-stream",)


def ended(events: Events) -> Json:
    return events[-1]["response"]  # type: ignore[no-any-return]


@in_stream("stream.created-first")
def the_created_event_is_left_out(events: Events) -> Events:
    return without(events, CREATED)


@in_stream("stream.created-first")
def the_created_event_comes_twice(events: Events) -> Events:
    return [*events[:2], events[0], *events[2:]]


@in_stream("stream.in-progress")
def the_in_progress_event_is_left_out(events: Events) -> Events:
    return without(events, IN_PROGRESS)


@in_stream("stream.one-terminal")
def the_terminal_event_is_left_out(events: Events) -> Events:
    return without(events, COMPLETED)


@in_stream("stream.one-terminal")
def the_terminal_event_comes_twice(events: Events) -> Events:
    return [*events, events[-1]]


@in_stream("stream.one-terminal")
def an_event_follows_the_terminal_one(events: Events) -> Events:
    return [*events, events[1]]


@in_stream("stream.terminal-status")
def a_completed_response_ends_with_incomplete(events: Events) -> None:
    for event in of_type(events, COMPLETED):
        event["type"] = "response.incomplete"


@in_stream("stream.created-status")
def the_response_begins_completed(events: Events) -> None:
    events[0]["response"]["status"] = "completed"


@in_stream("stream.created-empty")
def the_response_begins_with_output(events: Events) -> None:
    events[1]["response"]["output"] = ended(events)["output"]


@in_stream("stream.sequence-start")
def the_sequence_starts_at_one(events: Events) -> None:
    for event in events:
        event["sequence_number"] += 1


@in_stream("stream.sequence-number")
def the_sequence_has_a_gap(events: Events) -> None:
    for event in events[3:]:
        event["sequence_number"] += 1


@in_stream("stream.sequence-number")
def the_sequence_repeats_a_number(events: Events) -> None:
    for event in events[3:]:
        event["sequence_number"] -= 1


@in_stream("stream.sequence-number")
def the_sequence_has_a_text_for_a_number(events: Events) -> None:
    events[2]["sequence_number"] = "2"


@in_stream("stream.response-id")
def the_response_ends_with_another_id(events: Events) -> None:
    ended(events)["id"] = "resp_other"


@in_stream("stream.added-once", "stream.output-index")
def an_item_is_added_twice(events: Events) -> Events:
    at = next(n for n, event in enumerate(events) if event["type"] == ADDED)
    return [*events[: at + 1], events[at], *events[at + 1 :]]


@in_stream("stream.output-index")
def the_items_are_numbered_from_one(events: Events) -> None:
    for event in events:
        if "output_index" in event:
            event["output_index"] += 1


@in_stream("stream.output-index", "stream.done-once", "stream.final-output", "stream.item-identity")
def all_items_have_the_index_zero(events: Events) -> None:
    for event in events:
        if "output_index" in event:
            event["output_index"] = 0


@in_stream("stream.done-once", "stream.final-output")
def an_item_is_never_done(events: Events) -> Events:
    return without(events, DONE)


@in_stream("stream.done-once")
def an_item_is_done_twice(events: Events) -> Events:
    return [*events[:-1], [*of_type(events, DONE)][-1], events[-1]]


@in_stream("stream.item-identity")
def an_item_is_done_with_another_id(events: Events) -> None:
    for event in of_type(events, DONE):
        event["item"]["id"] += "x"
    for item in ended(events)["output"]:
        item["id"] += "x"


@in_stream("stream.item-status")
def an_item_is_added_as_completed(events: Events) -> None:
    for event in of_type(events, ADDED):
        event["item"]["status"] = "completed"


@in_stream("stream.item-status")
def an_item_is_done_while_in_progress(events: Events) -> None:
    for item in [*(event["item"] for event in of_type(events, DONE)), *ended(events)["output"]]:
        item["status"] = "in_progress"


@in_stream(
    "stream.item-ids",
    "stream.added-once",
    "stream.event-index",
    "stream.while-open",
    "stream.part-*",
    "stream.done-text",
    "stream.content-index",
)
def all_items_have_the_same_id(events: Events) -> None:
    for event in events:
        for item in [event.get("item"), *event.get("response", {}).get("output", [])]:
            if item:
                item["id"] = "item_1"
        if "item_id" in event:
            event["item_id"] = "item_1"


@in_stream("stream.item-id")
def deltas_are_for_an_item_that_nobody_knows(events: Events) -> None:
    for event in events:
        if "item_id" in event:
            event["item_id"] += "x"


@in_stream("stream.event-index")
def deltas_have_the_index_of_another_item(events: Events) -> None:
    for event in of_type(events, DELTA):
        event["output_index"] += 1


@in_stream("stream.while-open")
def an_item_is_done_before_its_part(events: Events) -> Events:
    at = [n for n, event in enumerate(events) if event["type"] == DONE and events[n - 1]["type"] == PART_DONE]
    for n in at:
        events[n - 1], events[n] = events[n], events[n - 1]
    return events


@in_stream("stream.part-added")
def parts_are_not_added(events: Events) -> Events:
    return without(events, PART_ADDED)


@in_stream("stream.part-done")
def parts_are_not_done(events: Events) -> Events:
    return without(events, PART_DONE)


@in_stream("stream.content-index", "stream.done-text", "stream.part-text")
def parts_are_numbered_from_one(events: Events) -> None:
    for event in events:
        if "content_index" in event:
            event["content_index"] += 1


@in_stream("stream.text-done")
def the_text_is_never_done(events: Events) -> Events:
    return without(events, TEXT_DONE)


@in_stream("stream.text-done")
def a_delta_follows_the_done_event(events: Events) -> Events:
    at = max((n for n, event in enumerate(events) if event["type"] == DELTA), default=None)
    done = next((n for n, event in enumerate(events) if event["type"] == TEXT_DONE), None)
    if at is None or done is None:
        return events
    return [*events[:at], *events[at + 1 : done + 1], events[at], *events[done + 1 :]]


@in_stream("stream.deltas-joined")
def a_delta_differs_from_what_is_done(events: Events) -> None:
    for event in of_type(events, DELTA):
        event["delta"] = event["delta"].upper() + "!"


@in_stream("stream.deltas-joined")
def a_delta_is_lost(events: Events) -> Events:
    at = next((n for n, event in enumerate(events) if event["type"] == DELTA), len(events))
    return events[:at] + events[at + 1 :]


@in_stream("stream.deltas-joined")
def deltas_have_all_of_the_text_so_far(events: Events) -> None:
    text = ""
    for event in of_type(events, DELTA):
        text = event["delta"] = text + event["delta"]


@in_stream("stream.done-text", "stream.deltas-joined")
def the_done_text_is_another(events: Events) -> None:
    for event in of_type(events, TEXT_DONE):
        event["text"] += "!"


@in_stream("stream.part-text")
def the_part_is_done_with_another_text(events: Events) -> None:
    for event in of_type(events, PART_DONE):
        event["part"]["text"] += "!"


@in_stream("stream.final-output")
def the_final_response_has_an_item_less(events: Events) -> None:
    if len(ended(events)["output"]) > 1:
        ended(events)["output"].pop()


@in_stream("stream.final-output")
def the_final_response_has_no_output(events: Events) -> None:
    ended(events)["output"] = []


@in_stream("stream.final-output")
def the_final_response_has_another_text(events: Events) -> None:
    for item in ended(events)["output"]:
        for part in item.get("content", []):
            part["text"] += "!"


@in_stream("stream.like-json", "schema.usage-total")
def streamed_usage_differs(events: Events) -> None:
    if ended(events)["usage"]:
        ended(events)["usage"]["input_tokens"] += 7


@in_stream("stream.final-usage")
def the_final_response_has_no_usage(events: Events) -> None:
    ended(events)["usage"] = None


@in_stream("stream.cut-told", "limits.incomplete-event", "limits.status-agrees")
def a_cut_stream_is_completed(events: Events) -> None:
    events[-1]["type"] = COMPLETED
    ended(events).update(status="completed", incomplete_details=None)


@in_stream("stream.cut-last", "stream.cut-told")
def an_item_that_is_not_the_last_is_incomplete(events: Events) -> None:
    if len(ended(events)["output"]) > 1:
        first = ended(events)["output"][0]
        first["status"] = "incomplete"
        for event in of_type(events, DONE):
            if event["item"]["id"] == first["id"]:
                event["item"]["status"] = "incomplete"


@in_stream("stream.incomplete-reason")
def a_cut_stream_does_not_say_why(events: Events) -> None:
    ended(events)["incomplete_details"] = None


ERROR = {"type": "server_error", "code": "server_error", "message": "Broken.", "param": None}


@in_stream("stream.error-then-failed")
def an_error_is_followed_by_completed(events: Events) -> Events:
    return [*events[:-1], {"type": "error", "sequence_number": -1, "error": ERROR}, events[-1]]


@in_stream("stream.failed-error", "limits.*", "reasoning.*", "structured.*", "clients.*")
def a_stream_fails_without_a_reason(events: Events) -> None:
    if ended(events)["tools"] == [] and "Count" not in json.dumps(events):
        events[-1]["type"] = "response.failed"
        ended(events).update(status="failed", error=None)


@in_stream("stream.echo")
def the_response_begins_without_its_tools(events: Events) -> None:
    events[0]["response"]["tools"] = []


@in_stream("stream.like-json")
def a_streamed_response_has_a_field_more(events: Events) -> None:
    for event in events:
        if "response" in event:
            event["response"]["acme_node"] = "node-1"


@in_stream("schema.event-types")
def an_event_has_a_type_of_its_own(events: Events) -> Events:
    return [*events[:2], {"type": "response.thinking", "sequence_number": -1}, *events[2:]]


@in_stream("schema.events")
def a_delta_has_a_number_for_a_field_of_text(events: Events) -> None:
    for event in of_type(events, DELTA):
        event["logprobs"] = "none"


@in_stream("tools.call-stream")
def arguments_are_not_streamed(events: Events) -> Events:
    return [event for event in events if "function_call_arguments" not in event["type"]]


@in_stream("tools.custom-stream")
def the_input_of_a_custom_call_is_not_streamed(events: Events) -> Events:
    return [event for event in events if "custom_tool_call_input" not in event["type"]]


@in_stream("reasoning.stream")
def reasoning_is_not_streamed(events: Events) -> Events:
    return [event for event in events if "reasoning" not in event["type"] and not _of_reasoning(event)]


def _of_reasoning(event: Json) -> bool:
    return event.get("part", {}).get("type") == "reasoning_text"


# Lines of the stream.


def in_lines(found_by: str, *also: str) -> Callable[[Callable[[str], str]], None]:
    def decorate(change: Callable[[str], str]) -> None:
        def reply(answer: Reply, sent: Sent) -> None:
            if answer.streams and sent.asks(store=False):
                answer.content = change(answer.content.decode()).encode()

        reply.__name__ = change.__name__
        in_reply(found_by, *also)(reply)

    return decorate


@in_lines("stream.event-name")
def events_have_no_name(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith("event:"))


@in_lines("stream.event-name")
def events_have_another_name(text: str) -> str:
    return text.replace("event: response.", "event: message.")


@in_lines("stream.done")
def the_stream_ends_without_done(text: str) -> str:
    return text.replace("data: [DONE]\n\n", "")


@in_lines("stream.done")
def the_stream_is_done_twice(text: str) -> str:
    return text + "data: [DONE]\n\n"


@in_lines("stream.data")
def an_event_is_no_json(text: str) -> str:
    return "data: ping\n\n" + text


@in_lines("stream.framing")
def a_line_is_no_field(text: str) -> str:
    return text.replace("data: [DONE]", "done\ndata: [DONE]")


@in_lines("stream.framing", "stream.done")
def the_last_blank_line_is_left_out(text: str) -> str:
    return text[:-1]


@in_reply("stream.content-type")
def a_stream_is_called_text(answer: Reply, sent: Sent) -> None:
    if answer.streams and sent.asks(store=False):
        answer.headers["content-type"] = "text/plain"


@in_reply(
    "stream.answer",
    "clients.*",
    "tools.call-stream",
    "errors.stream-status",
    "structured.schema-stream",
)
def streams_are_an_error(answer: Reply, sent: Sent) -> None:
    if answer.streams and sent.asks(store=False):
        answer.status, answer.headers["content-type"] = 500, "application/json"
        answer.json = {"error": copy.copy(ERROR)}


@in_reply("errors.stream-status")
def a_refused_stream_is_a_stream(answer: Reply, sent: Sent) -> None:
    if answer.status == 400 and sent.asks(stream=True):
        error = answer.json
        answer.status, answer.headers["content-type"] = 200, "text/event-stream"
        answer.events = [{"type": "error", "sequence_number": 0, **error}]
