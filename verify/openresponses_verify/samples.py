"""
Requests whose answers many checks share, and readers of answers, which raise `Inconclusive` for missing values.

`await server.memoized(samples.text)` sends a request the first time only. Any model can follow the prompts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.rows import Inconclusive
from openresponses_verify.server import VerifiedServer, assume_ok

Sample: TypeAlias = Callable[[VerifiedServer], Awaitable[HTTPExchange]]

SAY_HELLO = "Say hello."
COUNT = "Count from 1 to 200, separated by commas."
ASK_WEATHER = "What is the weather in Paris?"
WORDS = "Remember these words: alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november."
SHORT = "Answer with one word."
NO_RESPONSE = f"resp_{'0' * 50}"
LIMIT = 400  # output tokens: enough for every prompt here, and a bound for models that do not stop

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "A city, such as Paris."}},
        "required": ["location"],
        "additionalProperties": False,
    },
    "strict": True,
}
TIME_TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_time",
    "description": "Get the current time in UTC.",
    "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    "strict": True,
}
CUSTOM_TOOL: dict[str, Any] = {"type": "custom", "name": "write_note", "description": "Write a note of plain text."}
PERSON: dict[str, Any] = {
    "type": "json_schema",
    "name": "person",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
}
# A red heart on white, 32 by 32 pixels: some models reject smaller images.
HEART = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAQMAAABJtOi3AAAABlBMVEX////dIjPI8VIrAAAAVElEQVR42oXOsQ3AIB"
    "BDUSMKSkZgFEYLozEKI1BSoPxcQEqkNHHxKuvO0hM3UlE4j6YIXQnGJsP84S0v1oFFgCYPVQ7KRmDv8jTSMGI3fL0nFH1yASOGRCOmsQZtAAAAAE"
    "lFTkSuQmCC"
)
# A page with the line "Tides of the harbour".
PDF = (
    "data:application/pdf;base64,JVBERi0xLjQKMSAwIG9iajw8L1R5cGUvQ2F0YWxvZy9QYWdlcyAyIDAgUj4+IGVuZG9iagoyIDAgb2JqPDwv"
    "VHlwZS9QYWdlcy9LaWRzWzMgMCBSXS9Db3VudCAxPj4gZW5kb2JqCjMgMCBvYmo8PC9UeXBlL1BhZ2UvUGFyZW50IDIgMCBSL01lZGlhQm94WzAg"
    "MCAyNDAgOTldL0NvbnRlbnRzIDQgMCBSL1Jlc291cmNlczw8L0ZvbnQ8PC9GMSA1IDAgUj4+Pj4+PiBlbmRvYmoKNCAwIG9iajw8L0xlbmd0aCA1"
    "MD4+c3RyZWFtCkJUIC9GMSAxOCBUZiAyMCA2MCBUZCAoVGlkZXMgb2YgdGhlIGhhcmJvdXIpIFRqIEVUCmVuZHN0cmVhbSBlbmRvYmoKNSAwIG9i"
    "ajw8L1R5cGUvRm9udC9TdWJ0eXBlL1R5cGUxL0Jhc2VGb250L0hlbHZldGljYT4+IGVuZG9iagp4cmVmCjAgNgowMDAwMDAwMDAwIDY1NTM1IGYg"
    "CjAwMDAwMDAwMDkgMDAwMDAgbiAKMDAwMDAwMDA1MyAwMDAwMCBuIAowMDAwMDAwMTAzIDAwMDAwIG4gCjAwMDAwMDAyMTMgMDAwMDAgbiAKMDAw"
    "MDAwMDMwOSAwMDAwMCBuIAp0cmFpbGVyPDwvU2l6ZSA2L1Jvb3QgMSAwIFI+PgpzdGFydHhyZWYKMzcxCiUlRU9GCg=="
)
# Words in errors about unsupported images or files.
IMAGE_WORDS = ("image", "images", "input_image", "image_url", "vision", "mmproj", "multimodal", "modality")
FILE_WORDS = ("file", "files", "input_file", "file_data", "pdf", "document")


def message(role: str, content: object, **fields: object) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


def user_message(content: object) -> dict[str, Any]:
    return message("user", content)


def assistant_message(content: object, **fields: object) -> dict[str, Any]:
    return message("assistant", content, **fields)


def call_output(call_id: object, output: object) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def called(exchange: HTTPExchange, item_type: str = "function_call") -> list[dict[str, Any]]:
    return [item for item in exchange.output if item.get("type") == item_type]


def output_text(exchange: HTTPExchange) -> str:
    """Join the text in a response's messages."""
    parts = [part for item in exchange.output if item.get("type") == "message" for part in _parts(item.get("content"))]
    return "".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text")


def message_text(item: dict[str, Any]) -> str:
    """Join the text in an input or output message."""
    content = item.get("content")
    return content if isinstance(content, str) else "".join(str(part.get("text") or "") for part in _parts(content))


def _parts(content: object) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def input_tokens(exchange: HTTPExchange) -> int:
    tokens = exchange.usage.get("input_tokens")
    if not isinstance(tokens, int) or not tokens:
        raise Inconclusive("The usage has no input_tokens, which show the model's context.", exchange)
    return tokens


def echoed_field(exchange: HTTPExchange, name: str) -> Any:
    if name not in exchange.response:
        raise Inconclusive(f"The response has no field {name}: see schema.required.", exchange)
    return exchange.response[name]


def response_id(exchange: HTTPExchange) -> str:
    return _identifier(assume_ok(exchange).response, exchange)


def object_id(exchange: HTTPExchange) -> str:
    return _identifier(assume_ok(exchange).object, exchange)


def _identifier(document: dict[str, Any], exchange: HTTPExchange) -> str:
    identifier = document.get("id")
    if not identifier or not isinstance(identifier, str):
        raise Inconclusive(f"The {document.get('object') or 'object'} has no id.", exchange)
    return identifier


def first_call(exchange: HTTPExchange, item_type: str = "function_call") -> dict[str, Any]:
    calls = called(assume_ok(exchange, "tools", "tool_choice"), item_type)
    if not calls:
        raise Inconclusive("The model did not call the required tool.", exchange)
    return calls[0]


def _asking(**fields: object) -> Sample:
    async def ask(server: VerifiedServer) -> HTTPExchange:
        return await server.respond(**{"max_output_tokens": LIMIT, **fields})

    return ask


def _both(**fields: object) -> tuple[Sample, Sample]:
    """Return a JSON and a streaming sample of the same request."""
    return _asking(**fields), _asking(**fields, stream=True)


def _calling(*, stream: bool) -> Sample:
    """Return a sample that retries up to three times until the model calls."""

    async def ask(server: VerifiedServer) -> HTTPExchange:
        for _ in range(3):
            exchange = await server.respond(
                input=ASK_WEATHER, tools=[WEATHER_TOOL], tool_choice="required", max_output_tokens=LIMIT, stream=stream
            )
            if called(exchange) or not exchange.ok:
                break
        return exchange

    return ask


_THINK: dict[str, Any] = {
    "input": "Think, then answer: what is 2+2?",
    "reasoning": {"effort": "low"},
    "max_output_tokens": 4 * LIMIT,
}
text, text_stream = _both(input=[user_message(SAY_HELLO)])
cut_off, cut_off_stream = _both(input=COUNT, max_output_tokens=16)
call, call_stream = _calling(stream=False), _calling(stream=True)
custom, custom_stream = _both(input="Write the note: hello.", tools=[CUSTOM_TOOL], tool_choice="required")
no_tool = _asking(input="Write the note: hello.")
person, person_stream = _both(input="Give me a person as JSON.", text={"format": PERSON})
thought = _asking(**_THINK, include=["reasoning.encrypted_content"])
thought_stream = _asking(**_THINK, stream=True)
stored = _asking(
    input=[user_message(WORDS)],
    instructions="Answer in one short sentence.",
    store=True,
    metadata={"purpose": "verify"},
)
stored_stream = _asking(input=[user_message(WORDS)], store=True, stream=True)
alone = _asking(input=SHORT)  # a turn without context: the baseline for input tokens

# Streams to check against the laws.
STREAMS = (text_stream, cut_off_stream, call_stream, custom_stream, person_stream, thought_stream, stored_stream)
RESPONSES = (text, cut_off, call, person, thought, stored)
