"""Faults in response documents, errors, and handling of requests."""

from __future__ import annotations

import json
from typing import Any

from tests.verify.broken_server import Json, Reply, Sent, in_reply, in_request, in_response

HELLO = [{"type": "message", "role": "user", "content": "Say hello."}]


def _messages(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "message"]


def _parts(response: Json) -> list[Json]:
    return [part for item in _messages(response) for part in item["content"]]


def _cut(response: Json) -> bool:
    return bool(response["status"] == "incomplete" and response["max_output_tokens"] == 16)


# The form of responses.


@in_response("schema.required", "stream.like-json", streamed=True)
def a_field_that_is_null_is_left_out(response: Json, sent: Sent) -> None:
    if response["error"] is None:
        del response["error"]


@in_response("schema.response", streamed=True)
def a_number_is_a_text(response: Json, sent: Sent) -> None:
    response["top_logprobs"] = str(response["top_logprobs"])


@in_response("schema.usage", "reasoning.tokens", streamed=True)
def usage_has_no_details(response: Json, sent: Sent) -> None:
    if response["usage"]:
        del response["usage"]["output_tokens_details"]


@in_response("schema.usage-total", streamed=True)
def the_total_is_another(response: Json, sent: Sent) -> None:
    if response["usage"]:
        response["usage"]["total_tokens"] += 1


@in_response("schema.items", "items.required", "stream.like-json")
def items_have_no_id(response: Json, sent: Sent) -> None:
    for item in response["output"]:
        del item["id"]


@in_response("schema.content", "clients.annotations")
def texts_have_no_annotations(response: Json, sent: Sent) -> None:
    for part in _parts(response):
        del part["annotations"]


@in_response("schema.item-types")
def an_item_has_a_type_of_its_own(response: Json, sent: Sent) -> None:
    if sent.body["input"] == HELLO:
        response["output"].append({"type": "trace", "id": "trace_1", "status": "completed"})


@in_response("schema.object", "schema.response")
def a_response_is_called_a_completion(response: Json, sent: Sent) -> None:
    response["object"] = "chat.completion"


@in_response("schema.times")
def times_are_in_milliseconds(response: Json, sent: Sent) -> None:
    response["created_at"] *= 1000


@in_response("stream.like-json")
def a_whole_response_has_a_field_more(response: Json, sent: Sent) -> None:
    response["acme_node"] = "node-1"


@in_reply("schema.json")
def json_is_called_text(answer: Reply, sent: Sent) -> None:
    if answer.status == 200 and sent.creates and not answer.streams:
        answer.headers["content-type"] = "text/plain"


# Items.


@in_response("items.output", "input.*")
def there_is_no_output(response: Json, sent: Sent) -> None:
    if sent.body["input"] == HELLO:
        response["output"] = []


@in_response("items.message")
def the_message_is_the_systems(response: Json, sent: Sent) -> None:
    for item in _messages(response):
        item["role"] = "system"


@in_response("items.text")
def the_text_is_empty(response: Json, sent: Sent) -> None:
    for part in _parts(response) if sent.body["input"] == HELLO else ():
        part["text"] = ""


@in_response("items.ids-fresh")
def items_of_all_responses_have_the_same_ids(response: Json, sent: Sent) -> None:
    for item in _messages(response):
        item["id"] = "msg_1"


@in_response("items.completed")
def an_item_of_a_completed_response_is_incomplete(response: Json, sent: Sent) -> None:
    for item in _messages(response) if response["status"] == "completed" else ():
        item["status"] = "incomplete"


@in_response("items.logprobs")
def there_are_more_logprobs_than_were_asked_for(response: Json, sent: Sent) -> None:
    for part in _parts(response):
        for logprob in part.get("logprobs", []):
            logprob["top_logprobs"] *= 2


@in_response("items.no-logprobs")
def there_are_logprobs_that_nobody_asked_for(response: Json, sent: Sent) -> None:
    for part in _parts(response) if "include" not in sent.body else ():
        part["logprobs"] = [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]


def _echo(name: str, value: Any, found_by: str, *also: str) -> None:
    def change(response: Json, sent: Sent) -> None:
        if sent.body.get(name) is not None:
            response[name] = value

    change.__name__ = f"{name}_is_not_repeated"
    in_response(found_by, *also, streamed=True)(change)


_echo("metadata", {}, "items.echo-metadata")
_echo("instructions", None, "items.echo-instructions")
_echo("temperature", 1.0, "items.echo-sampling")
_echo("parallel_tool_calls", True, "items.echo-parallel")
_echo("truncation", "disabled", "items.echo-truncation")
_echo("prompt_cache_key", None, "items.echo-identifiers")
_echo("max_tool_calls", None, "items.echo-max-tool-calls")
_echo("store", True, "items.store-echo")
_echo("tool_choice", "auto", "tools.echo")
_echo("tools", [], "tools.echo", "tools.allowed-tools")
_echo("reasoning", {"effort": None, "summary": None}, "reasoning.effort")
_echo("text", {"format": {"type": "text"}}, "structured.echo", "structured.verbosity")


# Limits.


@in_request("limits.max-output-tokens", "items.echo-sampling", "errors.max-output-tokens")
def the_limit_is_ignored(sent: Sent) -> None:
    if sent.creates:
        sent.body.pop("max_output_tokens", None)


@in_response("limits.incomplete", "limits.status-agrees")
def a_cut_response_is_completed(response: Json, sent: Sent) -> None:
    if _cut(response):
        response.update(status="completed", incomplete_details=None)


@in_response("limits.incomplete-reason")
def the_reason_is_that_of_another_api(response: Json, sent: Sent) -> None:
    if _cut(response):
        response["incomplete_details"] = {"reason": "length"}


@in_response("limits.incomplete-item")
def a_cut_item_is_completed(response: Json, sent: Sent) -> None:
    for item in _messages(response) if _cut(response) else ():
        item["status"] = "completed"


@in_response("limits.call-cut")
def a_cut_call_is_completed(response: Json, sent: Sent) -> None:
    for item in response["output"]:
        item["status"] = "completed" if item["type"] == "function_call" else item.get("status")


@in_request("limits.metadata-pairs")
def any_number_of_metadata_is_taken(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("metadata"), dict):
        sent.body["metadata"] = dict([*sent.body["metadata"].items()][:16])


@in_reply("limits.long-input")
def a_long_input_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.creates and len(str(sent.body.get("input"))) > 50_000:
        _fails(answer)


@in_reply("limits.deep-schema")
def a_deep_schema_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.creates and json.dumps(sent.body.get("tools")).count("{") > 100 and "deep" in json.dumps(sent.body):
        _fails(answer)


def _fails(answer: Reply, message: str = "Broken.") -> None:
    answer.status = 500
    answer.json = {"error": {"type": "server_error", "code": "server_error", "message": message, "param": None}}


# Errors.


def _refused(answer: Reply) -> bool:
    return 400 <= answer.status < 500


@in_reply("errors.shape")
def errors_are_a_detail(answer: Reply, sent: Sent) -> None:
    if answer.status == 400 and (sent.body is None or sent.asks(input=7) or sent.asks(temperature="hot")):
        answer.json = {"detail": answer.json["error"]["message"]}


@in_reply("errors.fields", "errors.param")
def errors_have_no_param(answer: Reply, sent: Sent) -> None:
    if _refused(answer):
        document = answer.json
        del document["error"]["param"]
        answer.json = document


@in_reply("errors.param")
def errors_do_not_name_the_field(answer: Reply, sent: Sent) -> None:
    if _refused(answer):
        document = answer.json
        document["error"]["param"] = None
        answer.json = document


@in_reply("errors.type")
def a_mistake_is_called_the_servers(answer: Reply, sent: Sent) -> None:
    if _refused(answer):
        document = answer.json
        document["error"]["type"] = "server_error"
        answer.json = document


@in_reply("errors.json")
def errors_are_called_text(answer: Reply, sent: Sent) -> None:
    if _refused(answer):
        answer.headers["content-type"] = "text/html"


@in_reply("errors.private")
def errors_have_a_traceback(answer: Reply, sent: Sent) -> None:
    if _refused(answer):
        document = answer.json
        document["error"]["message"] += '\nTraceback (most recent call last):\n  File "/srv/app.py", line 1'
        answer.json = document


@in_reply("errors.json-body")
def a_body_that_is_no_json_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.method == "POST" and sent.body is None and _refused(answer) and sent.path == "/responses":
        _fails(answer)


@in_reply("errors.json-object")
def a_body_that_is_no_object_is_a_failure(answer: Reply, sent: Sent) -> None:
    if isinstance(sent.body, list):
        _fails(answer)


@in_request("errors.wrong-key")
def any_key_is_taken(sent: Sent) -> None:
    if "not-a-key" in sent.headers.get("authorization", ""):
        sent.headers["authorization"] = "Bearer sk-one"


@in_request("errors.temperature-range", "errors.temperature-type", "errors.param", "items.echo-sampling")
def temperature_is_ignored(sent: Sent) -> None:
    if sent.creates:
        sent.body.pop("temperature", None)


@in_request("errors.tools-type")
def tools_that_are_no_list_are_ignored(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("tools"), str):
        del sent.body["tools"]


@in_request("errors.part-type")
def a_part_of_an_unknown_type_is_ignored(sent: Sent) -> None:
    if sent.creates and "no_such_part" in json.dumps(sent.body):
        sent.body["input"] = "Hi."


@in_request("errors.item-role", "state.failed-turn")
def a_message_of_an_unknown_role_is_the_users(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("input"), list):
        for item in sent.body["input"]:
            if item.get("role") == "nobody":
                item["role"] = "user"


@in_reply("errors.path")
def an_unknown_path_is_a_page(answer: Reply, sent: Sent) -> None:
    if sent.path.startswith("/responses/no/"):
        answer.status = 200
        answer.json = {}


@in_reply("errors.input-type", "errors.stream-status")
def errors_are_a_success(answer: Reply, sent: Sent) -> None:
    if sent.asks(input=7) and answer.status == 400:
        answer.status = 200


# Tools.


@in_request("tools.none", "tools.named", "tools.allowed", "tools.echo", "tools.choice-unknown", "errors.tool-choice")
def the_choice_of_a_tool_is_ignored(sent: Sent) -> None:
    if sent.creates:
        sent.body.pop("tool_choice", None)


def _calls(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "function_call"]


@in_response("tools.call")
def a_call_has_another_name(response: Json, sent: Sent) -> None:
    for item in _calls(response):
        item["name"] = item["name"].replace("get_weather", "functions.get_weather")


@in_response("tools.arguments", "schema.items", "tools.no-parameters", "clients.replay")
def arguments_are_an_object(response: Json, sent: Sent) -> None:
    for item in _calls(response):
        if item["status"] == "completed":
            item["arguments"] = json.loads(item["arguments"])


@in_response("tools.no-parameters")
def no_arguments_are_an_empty_text(response: Json, sent: Sent) -> None:
    for item in _calls(response):
        item["arguments"] = "" if item["arguments"] == "{}" else item["arguments"]


@in_response("clients.call-status", "schema.items", "items.required", "stream.like-json")
def a_call_has_no_status(response: Json, sent: Sent) -> None:
    for item in _calls(response):
        del item["status"]


@in_response("tools.custom", "stream.like-json")
def a_custom_call_is_a_functions(response: Json, sent: Sent) -> None:
    for item in response["output"]:
        if item["type"] == "custom_tool_call":
            item["type"], item["arguments"] = "function_call", json.dumps({"input": item.pop("input")})


def _is_custom(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "custom"


@in_request("tools.custom", "tools.choice-unknown", "tools.custom-output")
def custom_tools_are_lost(sent: Sent) -> None:
    if sent.creates and any(map(_is_custom, sent.body.get("tools") or ())):
        sent.body["tools"] = [tool for tool in sent.body["tools"] if not _is_custom(tool)]
        sent.body.pop("tool_choice", None)


@in_response("tools.namespace")
def a_namespace_is_in_the_name(response: Json, sent: Sent) -> None:
    for item in _calls(response):
        if item.get("namespace"):
            item["name"] = f"{item.pop('namespace')}__{item['name']}"


@in_response("tools.allowed-tools")
def tools_that_are_not_allowed_are_left_out(response: Json, sent: Sent) -> None:
    if isinstance(response["tool_choice"], dict) and response["tool_choice"]["type"] == "allowed_tools":
        names = [tool["name"] for tool in response["tool_choice"]["tools"]]
        response["tools"] = [tool for tool in response["tools"] if tool["name"] in names]


@in_request("tools.output-reaches")
def outputs_of_calls_are_cut(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("input"), list):
        for item in sent.body["input"]:
            if item.get("type") == "function_call_output" and isinstance(item["output"], str):
                item["output"] = item["output"][:4]


@in_reply("tools.output-list", "tools.output-image")
def outputs_that_are_lists_are_a_failure(answer: Reply, sent: Sent) -> None:
    items = sent.body.get("input") if sent.creates else None
    if isinstance(items, list) and any(isinstance(item.get("output"), list) for item in items):
        _fails(answer)


@in_reply("tools.history-parallel")
def interleaved_outputs_are_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.creates and '"call_1", "output"' in json.dumps(sent.body) and '"call_0"' in json.dumps(sent.body):
        _fails(answer)


@in_response("tools.not-parallel")
def calls_are_parallel_in_any_case(response: Json, sent: Sent) -> None:
    if sent.body.get("parallel_tool_calls") is False:
        for item in _calls(response):
            response["output"].append({**item, "id": "fc_2", "call_id": "call_2"})


@in_reply("tools.nulls")
def a_null_in_a_tool_is_a_mistake(answer: Reply, sent: Sent) -> None:
    if sent.creates and '"strict": null' in json.dumps(sent.body.get("tools")):
        _refuses(answer, "Input should be a valid boolean.")


def _refuses(answer: Reply, message: str, param: str | None = None) -> None:
    answer.status, answer.headers["content-type"] = 400, "application/json"
    answer.json = {"error": {"type": "invalid_request_error", "code": None, "message": message, "param": param}}


# Structured output, and reasoning.


@in_request("structured.echo", "structured.unknown", "structured.schema-type", "structured.verbosity")
def the_format_of_the_text_is_ignored(sent: Sent) -> None:
    if sent.creates:
        sent.body.pop("text", None)


@in_response("structured.verbosity", streamed=True)
def verbosity_is_not_repeated(response: Json, sent: Sent) -> None:
    response["text"].pop("verbosity", None)


@in_response("structured.default", "schema.response", streamed=True)
def the_default_format_is_null(response: Json, sent: Sent) -> None:
    if "text" not in sent.body:
        response["text"]["format"] = None


def _thoughts(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "reasoning"]


@in_response("reasoning.item")
def reasoning_comes_behind_the_answer(response: Json, sent: Sent) -> None:
    response["output"].sort(key=lambda item: item["type"] == "reasoning")


@in_response("reasoning.not-in-text")
def reasoning_is_in_the_text(response: Json, sent: Sent) -> None:
    for part in _parts(response) if "reasoning" in sent.body else ():
        part["text"] = f"<think>Hm.</think>{part['text']}"


@in_response("reasoning.encrypted-opaque", "reasoning.replay")
def encrypted_reasoning_is_the_text(response: Json, sent: Sent) -> None:
    for item in _thoughts(response):
        if item.get("encrypted_content"):
            item["encrypted_content"] = json.dumps(item.get("content") or item.get("summary"))


@in_response("reasoning.encrypted-asked", "stream.final-output", streamed=True)
def reasoning_is_encrypted_unasked(response: Json, sent: Sent) -> None:
    for item in _thoughts(response) if "include" not in sent.body else ():
        item["encrypted_content"] = "gAAAA"


@in_response("reasoning.tokens", "schema.usage-total")
def more_tokens_are_thought_than_written(response: Json, sent: Sent) -> None:
    if "reasoning" in sent.body:
        response["usage"]["output_tokens_details"]["reasoning_tokens"] += 10_000


@in_request("reasoning.effort-unknown")
def an_unknown_effort_is_ignored(sent: Sent) -> None:
    if sent.creates and sent.body.get("reasoning") == {"effort": "no_such_effort"}:
        del sent.body["reasoning"]


# Forms of input.


@in_request("input.history")
def system_messages_are_left_out(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("input"), list):
        sent.body["input"] = [item for item in sent.body["input"] if item.get("role") != "system"]


@in_request("input.history", "input.stop-at-user")
def texts_of_the_assistant_are_left_out(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("input"), list) and "previous_response_id" not in sent.body:
        for item in sent.body["input"]:
            if item.get("role") == "assistant":
                item["content"] = "x"


@in_request("input.instructions", "items.echo-instructions")
def instructions_are_left_out(sent: Sent) -> None:
    if sent.asks(store=False):
        sent.body.pop("instructions", None)


@in_request("input.parts-agree")
def parts_of_a_message_are_shortened(sent: Sent) -> None:
    if sent.creates and isinstance(sent.body.get("input"), list) and len(sent.body["input"]) == 1:
        content = sent.body["input"][0].get("content")
        if isinstance(content, list) and len(content) == 1 and content[0].get("text", "").startswith("Remember"):
            content[0]["text"] = "Remember."


@in_reply("input.nulls", "clients.llama-index")
def null_is_a_mistake(answer: Reply, sent: Sent) -> None:
    if sent.creates and None in sent.body.values():
        _refuses(answer, "Input should be a valid string.")


@in_reply("input.untyped", "clients.agents", "clients.ai-sdk", "clients.llama-index")
def a_message_without_a_type_is_a_mistake(answer: Reply, sent: Sent) -> None:
    items = sent.body.get("input") if sent.creates else None
    if isinstance(items, list) and any("type" not in item for item in items):
        _refuses(answer, "Cannot determine the type of an item.")


@in_reply("input.phase")
def a_phase_is_a_mistake(answer: Reply, sent: Sent) -> None:
    if sent.creates and '"phase": "' in json.dumps(sent.body.get("input")):
        _refuses(answer, "Extra inputs are not permitted.")


@in_reply("input.image")
def an_image_is_a_failure(answer: Reply, sent: Sent) -> None:
    if sent.creates and '"detail": "low"' in json.dumps(sent.body):
        _fails(answer)
