"""Input forms sent by clients."""

from __future__ import annotations

from typing import Any

from openresponses_verify import samples
from openresponses_verify.expect import require_more_input_tokens
from openresponses_verify.rows import CHECKS, Check, check_row, require
from openresponses_verify.samples import LIMIT, assistant_message, input_tokens, message, user_message
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok

_CHAT = "Open Responses specification, Chat Inference"
_PARAM = "Open Responses schema, "
_ITEMS = "Open Responses specification, Items"


def _form(row_id: str, title: str, law: str, source: str, sent: object, *optional: str, **fields: object) -> None:
    """Register a check that an input is answered. `optional`: words in errors about a missing feature."""

    async def run(server: VerifiedServer) -> None:
        exchange = require_ok(await server.respond(input=sent, max_output_tokens=LIMIT, **fields), *optional)
        require(exchange.output, "The output is empty.", exchange)

    CHECKS.append(Check(row_id, title, law, source, run))


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


_form(
    "input.string",
    "A string",
    "A string input is interpreted as a user message.",
    _CHAT,
    "Say hello.",
)
_form(
    "input.message-string",
    "A message whose content is a string",
    "A message's content is text or a list of parts.",
    f"{_PARAM}UserMessageItemParam",
    [user_message("Say hello.")],
)
_form(
    "input.message-parts",
    "A message with several parts",
    "A message's content is text or a list of parts.",
    f"{_PARAM}UserMessageItemParam",
    [user_message([_text("Say"), _text("hello.")])],
)
_form(
    "input.untyped",
    "A message without a type",
    "A message may omit `type`, as in the SDKs' shortest form.",
    "OpenAI API reference, Create a model response, input; openai-python",
    [{"role": "user", "content": "Say hello."}],
)
_form(
    "input.system",
    "A system message",
    "A message with the role `system` is an input item.",
    f"{_PARAM}SystemMessageItemParam",
    [message("system", "Be brief."), user_message("Say hello.")],
)
_form(
    "input.developer",
    "A developer message",
    "A message with the role `developer` is an input item.",
    f"{_PARAM}DeveloperMessageItemParam",
    [message("developer", "Be brief."), user_message("Say hello.")],
)
_form(
    "input.developer-twice",
    "Instructions and a developer message in the middle",
    "Instructions and developer messages at any position can be combined. A server adapts them to chat templates "
    "that only allow a single system message at the start.",
    f"{_PARAM}DeveloperMessageItemParam; Codex",
    [user_message("Hi."), message("developer", "Be brief."), user_message("Say hello.")],
    instructions="Be kind.",
)
_form(
    "input.assistant-string",
    "An assistant message as a string",
    "An assistant message's content is text or a list of parts.",
    f"{_PARAM}AssistantMessageItemParam",
    [user_message("Hi."), assistant_message("Hello!"), user_message("Say hello.")],
)
_form(
    "input.assistant-parts",
    "An assistant message with output_text",
    "Items are bidirectional: output messages are valid input.",
    f"{_ITEMS}; {_PARAM}OutputTextContentParam",
    [
        user_message("Hi."),
        assistant_message([_output_text("Hello!")], id="msg_1", status="completed"),
        user_message("Say hello."),
    ],
)
_form(
    "input.refusal",
    "An assistant's refusal",
    "`refusal` is a content part in assistant messages.",
    f"{_PARAM}RefusalContentParam",
    [user_message("Hi."), assistant_message([{"type": "refusal", "refusal": "No."}]), user_message("Say hello.")],
)
_form(
    "input.phase",
    "A message with a phase",
    "`phase` labels an assistant message as commentary or final answer. Clients send it back.",
    f"{_PARAM}Message.phase",
    [
        user_message("Hi."),
        assistant_message([_output_text("Let me see.")], phase="commentary"),
        user_message("Say hello."),
    ],
)
_form(
    "input.empty-message",
    "A message without content",
    "An assistant message may be empty, for example next to a call.",
    f"{_PARAM}AssistantMessageItemParam; AI SDK",
    [user_message("Hi."), assistant_message([]), user_message("Say hello.")],
)
_form(
    "input.dump",
    "Items with null fields, as typed clients send them",
    "Item fields without a value may be null: openai-python's `model_dump()` includes them.",
    "openai-python, ResponseOutputMessage.model_dump()",
    [
        {"type": "message", "role": "user", "content": "Hi.", "id": None, "status": None},
        assistant_message([{**_output_text("Hello!"), "logprobs": None}], id="msg_1", status="completed", phase=None),
        {
            **{"type": "function_call", "id": None, "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
            **{"status": None, "namespace": None},
        },
        {"type": "function_call_output", "id": None, "call_id": "call_1", "output": "Sunny", "status": None},
        user_message("Say hello."),
    ],
)
_form(
    "input.nulls",
    "Optional fields that are null",
    "Optional request fields are nullable.",
    f"{_PARAM}CreateResponseBody; llama-index",
    "Say hello.",
    **dict.fromkeys(
        (
            *("previous_response_id", "include", "tools", "tool_choice", "metadata", "text", "temperature", "top_p"),
            *("parallel_tool_calls", "instructions", "reasoning", "safety_identifier", "prompt_cache_key"),
            *("truncation", "service_tier", "top_logprobs", "max_tool_calls"),
        )
    ),
)
_form(
    "input.empty-lists",
    "Empty lists",
    "`tools` and `include` may be empty lists. The Agents SDK sends them.",
    "openai-agents",
    [user_message("Say hello.")],
    tools=[],
    include=[],
)
_form(
    "input.unicode",
    "Text in many scripts",
    "JSON strings are Unicode.",
    "Open Responses specification, HTTP Request Bodies",
    "Say hello. \u4f60\u597d \u0645\u0631\u062d\u0628\u0627 \U0001f600\U0001f1eb\U0001f1f7 e\u0301",
)
_form(
    "input.image",
    "An image as a data URL",
    "The image in `input_image` is a URL or a base64 data URL.",
    f"{_PARAM}InputImageContentParamAutoParam",
    [user_message([_text("What is this?"), {"type": "input_image", "image_url": samples.HEART, "detail": "low"}])],
    *samples.IMAGE_WORDS,
)
_form(
    "input.file",
    "A file as base64",
    "A file input is a `file_id`, a `file_url`, or base64 `file_data` with a `filename`.",
    "Open Responses specification, File Input",
    [user_message([_text("Say hello."), {"type": "input_file", "filename": "a.pdf", "file_data": samples.PDF}])],
    *samples.FILE_WORDS,
)
_form(
    "input.metadata",
    "Metadata",
    "`metadata` attaches key-value pairs to a response.",
    f"{_PARAM}MetadataParam",
    "Say hello.",
    metadata={"topic": "verify"},
)
_form(
    "input.service-tier",
    "A service tier",
    "`service_tier` is a hint about the request's priority.",
    "Open Responses specification, service_tier",
    "Say hello.",
    "service_tier",
    service_tier="auto",
)
_form(
    "input.stop-at-user",
    "A list that ends with an answer",
    "The input may end with any item.",
    _ITEMS,
    [user_message("Say hello."), assistant_message("Hello")],
    "assistant",
    "last",
)


@check_row("input.parts-agree", "A string and a message are the same input", _CHAT)
async def _agree(server: VerifiedServer) -> None:
    """A string input is interpreted as a user message, with equal `input_tokens`."""
    tokens = []
    for sent in (samples.WORDS, [user_message(samples.WORDS)], [user_message([_text(samples.WORDS)])]):
        exchange = assume_ok(await server.respond(input=sent, max_output_tokens=16))
        tokens.append(input_tokens(exchange))
    require(len(set(tokens)) == 1, f"The three forms of one message have {tokens} input tokens.", exchange)


@check_row("input.history", "All items of the input reach the model", _CHAT)
async def _history(server: VerifiedServer) -> None:
    """All input items are part of the context."""
    for before in (
        [user_message(samples.WORDS), assistant_message("Yes.")],
        [user_message("Hi."), assistant_message([_output_text(samples.WORDS)])],
        [message("system", samples.WORDS)],
    ):
        short = assume_ok(await server.respond(input=[user_message("Say hello.")], max_output_tokens=16))
        exchange = assume_ok(await server.respond(input=[*before, user_message("Say hello.")], max_output_tokens=16))
        require_more_input_tokens(exchange, short, 10, "an item of many words")


@check_row(
    "input.instructions", "Instructions reach the model", "OpenAI API reference, Create a model response, instructions"
)
async def _instructions(server: VerifiedServer) -> None:
    """`instructions` is inserted into the model's context as a system or developer message."""
    short = assume_ok(await server.respond(max_output_tokens=16))
    exchange = require_ok(await server.respond(max_output_tokens=16, instructions=samples.WORDS), "instructions")
    require_more_input_tokens(exchange, short, 10, "instructions of many words")
