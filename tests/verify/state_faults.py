"""Faults in storage, background responses, the WebSocket and permissions."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.verify.broken_server import FAULTS, Fault, Json, Reply, Sent, in_frames, in_reply, in_request

ENDS = ("response.completed", "response.incomplete", "response.failed")


def _documents(answer: Reply) -> bool:
    return answer.status == 200 and not answer.streams


def _change(answer: Reply, **fields: object) -> None:
    answer.json = {**answer.json, **fields}


@in_request("state.previous-response", "state.*", "tools.output-*", "conversations.with-previous", "isolation.previous")
def the_previous_response_is_ignored(sent: Sent) -> None:
    if sent.creates:
        sent.body.pop("previous_response_id", None)


@in_reply("state.previous-echo")
def the_previous_response_is_not_named(answer: Reply, sent: Sent) -> None:
    if sent.creates and _documents(answer):
        _change(answer, previous_response_id=None)


@in_request("state.previous-unknown", "state.previous-code")
def an_unknown_previous_response_is_ignored(sent: Sent) -> None:
    if sent.creates and str(sent.body.get("previous_response_id")).startswith("resp_0000"):
        del sent.body["previous_response_id"]


@in_reply("state.previous-code")
def an_unknown_previous_response_is_any_mistake(answer: Reply, sent: Sent) -> None:
    if sent.creates and answer.status == 400:
        _change(answer, error={**answer.json["error"], "code": "invalid_request"})


@in_reply("state.retrieve", "state.retrieve-streamed", "background.poll")
def a_retrieved_response_has_no_output(answer: Reply, sent: Sent) -> None:
    if sent.method == "GET" and sent.path.count("/") == 2 and _documents(answer) and "output" in answer.json:
        _change(answer, output=[])


@in_reply("state.retrieve-metadata")
def metadata_is_not_stored(answer: Reply, sent: Sent) -> None:
    if sent.method == "GET" and _documents(answer) and answer.json.get("object") == "response":
        _change(answer, metadata={})


@in_reply("state.retrieve-streamed")
def a_streamed_response_is_not_stored(answer: Reply, sent: Sent) -> None:
    if sent.asks(store=True, stream=True) and "background" not in sent.body:
        sent.memory["id"] = answer.events[0]["response"]["id"]
    elif sent.method == "GET" and sent.memory.get("id") == sent.path.rpartition("/")[2]:
        answer.status = 404


@in_reply("state.unknown", "state.deleted-retrieve", "state.store-false", "isolation.*", "conversations.*")
def an_unknown_response_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.method == "GET" and sent.path.startswith("/responses/resp") and answer.status == 404:
        answer.status = 500


@in_request("state.store-false", "state.store-false-previous", "items.store-echo")
def everything_is_stored(sent: Sent) -> None:
    if sent.creates and "background" not in sent.body:
        sent.memory["store"] = sent.body.get("store", True)
        sent.body["store"] = True


def a_fork_continues_from_the_other_branch(sent: Sent) -> None:
    if sent.creates and sent.body.get("input") == "Answer with one word.":
        sent.memory["previous"] = sent.body.get("previous_response_id")
        other = sent.memory.get(sent.memory["previous"])
        if other:
            sent.body["previous_response_id"] = other


def _branch(answer: Reply, sent: Sent) -> None:
    if sent.asks(store=True) and _documents(answer) and sent.memory.get("previous"):
        sent.memory[sent.memory["previous"]] = answer.json["id"]


FAULTS.append(
    Fault(
        "a_fork_continues_from_the_other_branch",
        "state.fork",
        request=a_fork_continues_from_the_other_branch,
        reply=_branch,
    )
)


@in_reply("state.input-items-order")
def input_items_come_in_the_wrong_order(answer: Reply, sent: Sent) -> None:
    if sent.path.endswith("/input_items") and _documents(answer):
        _change(answer, data=answer.json["data"][::-1])


@in_reply("state.input-items-list", "state.input-items-order")
def a_list_has_no_end(answer: Reply, sent: Sent) -> None:
    if sent.path.endswith("/input_items") and _documents(answer):
        document = answer.json
        del document["has_more"]
        answer.json = document


@in_reply("state.input-items", "state.input-items-order")
def input_items_have_no_id(answer: Reply, sent: Sent) -> None:
    if sent.path.endswith("/input_items") and _documents(answer) and len(answer.json["data"]) == 1:
        _change(answer, data=[{**item, "id": None} for item in answer.json["data"]])


@in_reply("state.delete")
def delete_reports_deleted_false(answer: Reply, sent: Sent) -> None:
    if sent.method == "DELETE" and sent.path.startswith("/responses/") and _documents(answer):
        _change(answer, deleted=False)


def _get_instead(sent: Sent) -> None:
    if sent.method == "DELETE" and sent.path.startswith("/responses/"):
        sent.method, sent.memory["deleted"] = "GET", sent.path


def _report_deleted(answer: Reply, sent: Sent) -> None:
    if sent.memory.pop("deleted", None) == sent.path and _documents(answer):
        answer.json = {"id": answer.json["id"], "object": "response", "deleted": True}


FAULTS.append(
    Fault(
        "nothing_is_deleted",
        "state.deleted-retrieve",
        ("state.deleted-previous", "state.deleted-again"),
        request=_get_instead,
        reply=_report_deleted,
    )
)


@in_reply("state.item-reference")
def references_are_a_mistake(answer: Reply, sent: Sent) -> None:
    if sent.creates and "item_reference" in json.dumps(sent.body) and answer.status == 200:
        answer.status = 500


@in_request("state.item-reference-unknown", "isolation.item-reference")
def references_are_left_out(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("input"), list):
        sent.body["input"] = [item for item in sent.body["input"] if item.get("type") != "item_reference"]


# Conversations.


@in_reply("conversations.create")
def a_conversation_is_called_something_else(answer: Reply, sent: Sent) -> None:
    if sent.method == "POST" and sent.path == "/conversations" and _documents(answer):
        _change(answer, object="thread")


@in_reply("conversations.response")
def a_response_does_not_name_its_conversation(answer: Reply, sent: Sent) -> None:
    if sent.creates and _documents(answer) and "conversation" in sent.body:
        _change(answer, conversation=None)


@in_request(
    "conversations.context",
    "conversations.append",
    "conversations.response",
    "conversations.unknown",
    "conversations.with-previous",
    "isolation.conversation",
)
def the_conversation_is_ignored(sent: Sent) -> None:
    if sent.creates:
        sent.body.pop("conversation", None)


@in_reply("conversations.unknown")
def an_unknown_conversation_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.path.startswith("/conversations/conv_000"):
        answer.status = 500


@in_reply("conversations.items-order")
def items_come_in_the_wrong_order(answer: Reply, sent: Sent) -> None:
    if sent.path.endswith("/items") and sent.method == "GET" and _documents(answer):
        _change(answer, data=sorted(answer.json["data"], key=lambda item: item["id"]))


@in_reply("conversations.update")
def changed_metadata_is_forgotten(answer: Reply, sent: Sent) -> None:
    if sent.path.count("/") == 2 and sent.path.startswith("/conversations/") and _documents(answer):
        _change(answer, metadata={"purpose": "verify"})


@in_reply("conversations.append")
def output_is_not_added(answer: Reply, sent: Sent) -> None:
    if sent.path.endswith("/items") and sent.method == "GET" and _documents(answer):
        _change(answer, data=[item for item in answer.json["data"] if item.get("role") != "assistant"])


@in_reply("conversations.delete")
def a_deleted_conversation_is_not_called_so(answer: Reply, sent: Sent) -> None:
    if sent.method == "DELETE" and sent.path.count("/") == 2 and sent.path.startswith("/conv") and _documents(answer):
        _change(answer, deleted=False)


# Background, and compaction.


@in_reply("background.create")
def a_background_response_has_background_false(answer: Reply, sent: Sent) -> None:
    if sent.asks(background=True) and _documents(answer):
        _change(answer, background=False)


@in_reply("background.poll")
def a_response_in_the_background_fails(answer: Reply, sent: Sent) -> None:
    if sent.method == "GET" and _documents(answer) and answer.json.get("background"):
        _change(answer, status="failed")


@in_reply("background.stream", "background.resume-same")
def a_stream_in_the_background_has_a_gap(answer: Reply, sent: Sent) -> None:
    if sent.asks(background=True) and answer.streams:
        answer.events = [
            {**event, "sequence_number": event["sequence_number"] + (n > 4)} for n, event in enumerate(answer.events)
        ]


@in_reply("background.resume")
def a_resumed_stream_begins_too_late(answer: Reply, sent: Sent) -> None:
    if sent.method == "GET" and answer.streams:
        answer.events = answer.events[1:]


@in_reply("background.resume-same")
def a_resumed_stream_has_other_events(answer: Reply, sent: Sent) -> None:
    if sent.method == "GET" and answer.streams:
        answer.events = [{**event, "item_id": "msg_x"} if "item_id" in event else event for event in answer.events]


@in_reply("background.cancel-foreground")
def any_response_can_be_cancelled(answer: Reply, sent: Sent) -> None:
    if sent.path.endswith("/cancel") and answer.status == 400:
        answer.status = 200


@in_request("background.not-stored")
def what_runs_in_the_background_is_stored_in_any_case(sent: Sent) -> None:
    if sent.asks(background=True):
        sent.body["store"] = True


@in_reply("compaction.create")
def a_compaction_is_called_a_response(answer: Reply, sent: Sent) -> None:
    if sent.path == "/responses/compact" and _documents(answer):
        _change(answer, object="response")


@in_reply("compaction.schema")
def a_compaction_has_no_usage(answer: Reply, sent: Sent) -> None:
    if sent.path == "/responses/compact" and _documents(answer):
        _change(answer, usage=None)


@in_reply("compaction.opaque", "compaction.replay", "websocket.compacted")
def a_compaction_can_be_read(answer: Reply, sent: Sent) -> None:
    if sent.path == "/responses/compact" and _documents(answer):
        items = [{**item, "encrypted_content": json.dumps(sent.body)} for item in answer.json["output"]]
        _change(answer, output=items)


@in_reply("compaction.tampered")
def a_changed_compaction_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.creates and answer.status == 400 and '"compaction"' in json.dumps(sent.body.get("input")):
        answer.status = 500


@in_reply("compaction.missing-model")
def a_compaction_without_a_model_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.path == "/responses/compact" and answer.status == 400:
        answer.status = 500


@in_reply("compaction.input-tokens")
def input_is_counted_as_nothing(answer: Reply, sent: Sent) -> None:
    if sent.path == "/responses/input_tokens" and _documents(answer):
        _change(answer, input_tokens=0)


# The WebSocket.


@in_frames("websocket.json")
def a_turn_ends_with_done(frame: Json, memory: Json) -> Iterable[Json] | None:
    return [{"raw": "[DONE]"}, frame] if frame["type"] in ENDS else None


@in_frames("websocket.events")
def a_turn_has_a_gap(frame: Json, memory: Json) -> Iterable[Json] | None:
    late = frame.get("sequence_number", 0) > 3
    return [{**frame, "sequence_number": frame["sequence_number"] + 1}] if late else None


@in_frames("websocket.sequential")
def numbers_go_on_from_turn_to_turn(frame: Json, memory: Json) -> Iterable[Json] | None:
    if "sequence_number" not in frame:
        return None
    memory["next"] = memory.get("next", -1) + 1
    return [{**frame, "sequence_number": memory["next"]}]


@in_frames("websocket.error")
def an_error_has_a_text_for_a_status(frame: Json, memory: Json) -> Iterable[Json] | None:
    return [{**frame, "status": str(frame["status"])}] if "status" in frame else None


@in_frames("websocket.previous-unknown", "websocket.reconnect", "websocket.evicts")
def an_unknown_previous_response_has_another_code(frame: Json, memory: Json) -> Iterable[Json] | None:
    return [{**frame, "error": {**frame["error"], "code": "not_found"}}] if "status" in frame else None


# Rights, and clients.


@in_request("isolation.retrieve", "isolation.*")
def all_keys_are_one_user(sent: Sent) -> None:
    if "sk-two" in sent.headers.get("authorization", ""):
        sent.headers["authorization"] = "Bearer sk-one"


@in_reply("isolation.same-answer")
def what_is_anothers_is_forbidden(answer: Reply, sent: Sent) -> None:
    foreign = sent.method == "GET" and answer.status == 404 and "resp_000" not in sent.path
    if foreign and "sk-two" in sent.headers.get("authorization", ""):
        answer.status = 403


@in_reply("clients.models")
def models_have_no_object(answer: Reply, sent: Sent) -> None:
    if sent.path == "/models":
        _change(answer, data=[{"id": model["id"]} for model in answer.json["data"]])


@in_reply("clients.request-id")
def answers_have_no_request_id(answer: Reply, sent: Sent) -> None:
    answer.headers.pop("x-request-id", None)


@in_reply("clients.openai-node")
def openai_node_gets_the_names_of_the_specification(answer: Reply, sent: Sent) -> None:
    if answer.streams and "stainless" in "".join(sent.headers):
        answer.content = answer.content.replace(b"response.reasoning_text.", b"response.reasoning.")


@in_reply("clients.codex")
def web_search_is_a_mistake(answer: Reply, sent: Sent) -> None:
    if sent.creates and '"web_search"' in json.dumps(sent.body.get("tools")):
        answer.status, answer.headers["content-type"] = 400, "application/json"
        message = "'type' of tool must be 'function'"
        answer.json = {"error": {"type": "invalid_request_error", "code": None, "message": message, "param": None}}
