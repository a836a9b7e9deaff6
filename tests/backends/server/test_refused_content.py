"""Refused schema keywords and images: servers' error messages, and the adapted request."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from app.backends.server.adaptation import AdaptedRequest, FieldAdaptation
from app.backends.server.refused_content import REFUSED_IMAGE
from app.core.profile import Profile
from app.core.request import CALLER_FIELDS
from app.errors import BackendError
from tests.support.machine import slowness
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Step, Upstream, chunk, completion, finish, sse, status

DAY = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "pattern": r"^\d{4}$", "format": "date", "minLength": 4},
        "pattern": {"type": "string"},
        "next": {"$ref": "#/$defs/next"},
    },
    "$defs": {"next": {"type": "object", "properties": {"next": {"$ref": "#/$defs/next"}}}},
}


def lacking(*keywords: str, schema: Any = DAY, names: bool = False) -> Any:
    """The schema without keywords, but with properties that have these names."""
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: lacking(*keywords, schema=value, names=key in ("properties", "$defs") and not names)
        for key, value in schema.items()
        if names or key not in keywords
    }


def chat_tool(*, strict: bool | None = None, schema: Any = DAY) -> dict[str, Any]:
    function = {"name": "f", "parameters": schema, **({} if strict is None else {"strict": strict})}
    return {"type": "function", "function": function}


def adapted(body: dict[str, Any], **options: Any) -> AdaptedRequest:
    profile = Profile().override({f"request.{name.replace('__', '.')}": value for name, value in options.items()})
    return FieldAdaptation(profile.request, CALLER_FIELDS).adapt(body)


def refusal(message: str, code: int = 400) -> BackendError:
    error = BackendError(message, status=code)
    if code == 500:
        error.status, error.answered = 502, 500
    return error


def asked_with(*tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [*tools], **fields}


REJECTED = "This backend rejects the keyword '{}' in tool schemas; it was removed."

# A keyword's error messages, and the removed keywords.
KEYWORDS: dict[str, tuple[str, list[str]]] = {
    "llama.cpp": ("JSON schema conversion failed:\nPattern must start with '^' and end with '$'", ["pattern"]),
    "LM Studio": (
        "Error: JSON schema conversion failed: Pattern must start with '^' and end with '$'",
        ["pattern"],
    ),
    "llama.cpp, of a grammar": ("Failed to initialize samplers: failed to parse grammar", ["pattern"]),
    "llama.cpp, of a schema": ('JSON schema conversion failed:\nUnrecognized schema: {"format":"date"}', ["format"]),
    "Kimi": (
        "Invalid request: tools.function.parameters is not a valid moonshot flavored json schema, details: "
        "<At path 'properties.day': keyword 'format' is not allowed>",
        ["format"],
    ),
    "recursive": ("Recursive schemas are not supported: circular reference in schema 'f'.", ["$ref"]),
    "Groq": (
        "invalid JSON schema for tool f, tools[0].function.parameters: `/properties/day/pattern`: no",
        ["pattern"],
    ),
    "Cerebras": ("Unsupported JSON schema fields: {'pattern', 'minLength'}", ["pattern", "minLength"]),
    "Gemini": (
        'Invalid JSON payload received. Unknown name "minLength" at '
        "'tools[0].function_declarations[0].parameters.properties[0].value': Cannot find field.",
        ["minLength"],
    ),
    "Gemini, of a value": (
        "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[day].format: "
        "only 'enum' and 'date-time' are supported for STRING type",
        ["format"],
    ),
}


@pytest.mark.parametrize(("message", "keywords"), KEYWORDS.values(), ids=KEYWORDS)
def test_refused_keyword_is_left_out_of_tools_with_a_warning(message: str, keywords: list[str]) -> None:
    body = asked_with(chat_tool(), {"type": "web_search"})
    before = copy.deepcopy(body)
    request = adapted(body)
    assert request.drop_fields(refusal(message))
    assert request.body == asked_with(chat_tool(schema=lacking(*keywords)), {"type": "web_search"})
    assert request.warnings == [REJECTED.format(keyword) for keyword in keywords]
    assert body == before


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "f", "input_schema": DAY},
        {"type": "function", "name": "f", "parameters": DAY},
    ],
    ids=["Messages", "Responses"],
)
def test_refused_keyword_is_left_out_for_every_server_api(tool: dict[str, Any]) -> None:
    request = adapted({"model": "m", "tools": [tool]})
    assert request.drop_fields(refusal("Unsupported keyword 'pattern' in a schema"))
    name = "input_schema" if "input_schema" in tool else "parameters"
    assert request.body["tools"] == [{**tool, name: lacking("pattern")}]


FORMS = {
    "type": "object",
    "properties": {
        "either": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]},
    },
}
REWRITTEN = {
    "type": "object",
    "properties": {
        "either": {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
    },
}


@pytest.mark.parametrize("strict", [None, True])
def test_refused_form_of_a_schema_is_rewritten_without_a_warning(strict: bool | None) -> None:
    message = (
        "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path 'root': "
        "when using anyOf, type should be defined in anyOf items instead of the parent schema>"
    )
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    request = adaptation.adapt(asked_with(chat_tool(strict=strict, schema=FORMS)))
    assert request.drop_fields(refusal(message))
    assert request.body == asked_with(chat_tool(strict=strict, schema=REWRITTEN))
    assert request.warnings == []
    request.accepted()
    assert adaptation.adapt(asked_with(chat_tool(schema=FORMS))).body == asked_with(chat_tool(schema=REWRITTEN))
    assert not request.drop_fields(refusal(message))


def test_refusal_without_a_keyword_removes_one_kind_of_keyword_after_the_other() -> None:
    request = adapted(asked_with(chat_tool()))
    for removed in (["pattern"], ["pattern", "minLength"], ["pattern", "minLength", "format"]):
        assert request.drop_fields(refusal("failed to parse grammar"))
        assert request.body["tools"] == [chat_tool(schema=lacking(*removed))]
    assert not request.drop_fields(refusal("failed to parse grammar"))


@pytest.mark.parametrize("message", [KEYWORDS["llama.cpp"][0], KEYWORDS["llama.cpp, of a grammar"][0]])
def test_keyword_of_a_strict_tool_stays_and_is_named(message: str) -> None:
    request = adapted(asked_with(chat_tool(strict=True)))
    assert not request.drop_fields(refusal(message))
    error = request.explain(refusal(message))
    assert error.param == "tools"
    assert error.message == (
        f"{message} The keyword 'pattern' at 'properties.day.pattern' in the strict tool 'f' was kept, "
        "because the schema is enforced."
    )


def test_keyword_of_a_strict_tool_stays_beside_tools_that_are_not_strict() -> None:
    request = adapted(asked_with(chat_tool(strict=False), chat_tool(strict=True)))
    error = refusal(KEYWORDS["llama.cpp"][0])
    assert request.drop_fields(error)
    assert request.body["tools"] == [chat_tool(strict=False, schema=lacking("pattern")), chat_tool(strict=True)]
    assert not request.drop_fields(error)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DAY}}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": DAY}}},
        {"output_config": {"format": {"type": "json_schema", "schema": DAY}}},
    ],
    ids=["chat", "Responses", "Messages"],
)
def test_keyword_of_a_text_format_stays_and_is_named(fields: dict[str, Any]) -> None:
    request = adapted({"model": "m", **fields})
    assert not request.drop_fields(refusal(KEYWORDS["llama.cpp"][0]))
    error = request.explain(refusal(KEYWORDS["llama.cpp"][0]))
    assert error.param == "text.format.schema.properties.day.pattern"
    assert error.message.endswith(
        "The keyword 'pattern' at 'properties.day.pattern' in 'text.format.schema' was kept, "
        "because the schema is enforced."
    )


def test_learned_keywords_are_left_out_of_the_tools_that_have_them() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    request = adaptation.adapt(asked_with(chat_tool()))
    assert request.drop_fields(refusal(KEYWORDS["Cerebras"][0]))
    request.accepted()
    again = adaptation.adapt(asked_with(chat_tool()))
    assert again.body == asked_with(chat_tool(schema=lacking("pattern", "minLength")))
    assert again.warnings == [REJECTED.format("pattern"), REJECTED.format("minLength")]
    for body in (asked_with(chat_tool(strict=True)), asked_with(chat_tool(schema={"type": "object"})), asked_with()):
        assert (adaptation.adapt(body).body, adaptation.adapt(body).warnings) == (body, [])


@pytest.mark.parametrize(
    "message",
    [
        "The schema is invalid: properties.day must be a list.",
        "Invalid schema at 'properties.pattern': no type",  # a property name
        "The 'pattern' in your picture is not permitted.",
        "Invalid parameters: 'enum' must be a list.",
    ],
)
def test_refusal_of_another_kind_leaves_schemas_as_they_are(message: str) -> None:
    request = adapted(asked_with(chat_tool()))
    assert not request.drop_fields(refusal(message))
    assert not request.drop_fields(refusal("keyword 'pattern' in a schema", 429))
    assert request.explain(refusal(message)).message == message


def test_keywords_stay_where_adaptation_is_switched_off() -> None:
    assert not adapted(asked_with(chat_tool()), adapt=False).drop_fields(refusal(KEYWORDS["llama.cpp"][0]))


IMAGES: dict[str, tuple[int, str]] = {
    "DeepSeek": (
        400,
        "Failed to deserialize the JSON body into the target type: messages[0]: unknown variant `image_url`, expected "
        "`text` at line 1 column 283",
    ),
    "llama.cpp": (
        500,
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
    ),
    "LM Studio": (400, "Model does not support images. Please use a model that does."),
    "Ollama": (500, "Failed to create new sequence: this model is missing data required for image input"),
    "vLLM": (400, "m is not a multimodal model"),
    "vLLM, of a limit": (400, "At most 0 image(s) may be provided in one prompt."),
    "OpenAI": (400, "Invalid content type. image_url is only supported by certain models."),
    "Mistral": (400, "Image input is not enabled for this model"),
    "xAI": (400, "Image inputs are not supported by this model."),
    "of vision": (400, "This model does not support vision."),
    "of a named model": (400, "The model 'm' does not support image input"),
    "Bedrock": (400, "This model doesn't support the image content block that you provided."),
    "OpenRouter": (404, "No endpoints found that support image input"),
    "Moonshot": (400, "Invalid request: Image input not supported for model moonshot-v1-8k"),
    "pydantic": (400, "Input tag 'image_url' found using 'type' does not match any of the expected tags: 'text'"),
}
NOTE = "(Content of type input_image was omitted: this model does not support it.)"
NOTED = "This backend does not support input_image; it was replaced by a note."
URL = "data:image/png;base64,AAAA"
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": URL}}


def chat_with_image() -> dict[str, Any]:
    content = [{"type": "text", "text": "What is this?"}, CHAT_IMAGE]
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
    }


@pytest.mark.parametrize(("code", "message"), IMAGES.values(), ids=IMAGES)
def test_images_that_are_refused_become_a_note_with_a_warning(code: int, message: str) -> None:
    body = chat_with_image()
    request = adapted(body)
    assert request.drop_fields(refusal(message, code))
    assert request.body["messages"] == [body["messages"][0], {"role": "user", "content": f"What is this?\n{NOTE}"}]
    assert request.warnings == [NOTED]
    assert body == chat_with_image()


def test_note_has_the_form_of_content_that_the_server_needs() -> None:
    request = adapted(chat_with_image(), content__parts="array")
    assert request.drop_fields(refusal("Model does not support images."))
    text = {"type": "text", "text": "What is this?"}
    assert request.body["messages"][1]["content"] == [text, {"type": "text", "text": NOTE}]


def test_images_of_messages_and_their_tool_results_become_notes() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [image]}
    request = adapted({"model": "m", "messages": [{"role": "user", "content": [result, {**image, **mark}]}]})
    assert request.drop_fields(refusal("This model does not support images."))
    note = {"type": "text", "text": NOTE}
    assert request.body["messages"] == [
        {"role": "user", "content": [{**result, "content": [note]}, {**note, **mark}]},
    ]


def test_images_of_responses_and_their_call_outputs_become_notes() -> None:
    image = {"type": "input_image", "image_url": URL}
    output = {"type": "function_call_output", "call_id": "c", "output": [image]}
    message = {"type": "message", "role": "user", "content": [image]}
    request = adapted({"model": "m", "input": [output, message]})
    assert request.drop_fields(refusal("unknown variant `input_image`, expected `input_text`"))
    note = {"type": "input_text", "text": NOTE}
    assert request.body["input"] == [{**output, "output": [note]}, {**message, "content": [note]}]


def test_images_of_gemini_and_its_function_responses_become_notes() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    other = {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}}
    file = {"fileData": {"mimeType": "image/jpeg", "fileUri": URL}}
    response = {"name": "look", "response": {"output": "Here."}}
    parts = [{"functionResponse": {**response, "parts": [image, other]}}, file, {"text": "See?"}]
    request = adapted({"model": "m", "contents": [{"role": "user", "parts": parts}]})
    assert request.drop_fields(refusal("Image input modality is not enabled for models/gemma-3-1b-it"))
    noted = {"name": "look", "response": {"output": f"Here.\n{NOTE}"}, "parts": [other]}
    expected = [{"functionResponse": noted}, {"text": NOTE}, {"text": "See?"}]
    assert request.body["contents"] == [{"role": "user", "parts": expected}]


@pytest.mark.parametrize(
    "message",
    [
        "This server does not support image URLs.",
        "The model does not support images in tool results.",
        "The model does not support image input formats other than PNG.",
        "Images are not supported in tool messages.",
        "This model does not support images bigger than 5 MB.",
        "This model does not support image dimensions above 8000 pixels.",
        "This image is not allowed by our safety system.",
        "The image is not supported.",
        "The image is not a valid PNG.",
        "unknown variant `video_url`, expected `text`",
    ],
)
def test_refusal_of_some_images_is_returned(message: str) -> None:
    assert not adapted(chat_with_image()).drop_fields(refusal(message))


@pytest.mark.parametrize("code", [429, 503])
def test_images_stay_after_errors_of_another_kind(code: int) -> None:
    assert not adapted(chat_with_image()).drop_fields(refusal("Model does not support images.", code))


def test_images_stay_where_adaptation_is_switched_off() -> None:
    request = adapted(chat_with_image(), adapt=False)
    error = refusal("Model does not support images.")
    assert not request.drop_fields(error)
    assert request.explain(error).param == "input"


def test_refusal_of_images_without_any_changes_nothing() -> None:
    assert not adapted(asked_with(chat_tool())).drop_fields(refusal("Model does not support images."))


def test_images_are_remembered_for_the_model_alone() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    request = adaptation.adapt(chat_with_image())
    assert request.drop_fields(refusal("Model does not support images."))
    request.accepted()
    assert REFUSED_IMAGE.startswith("messages")
    assert adaptation.adapt(chat_with_image()).warnings == [NOTED]
    text = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert adaptation.adapt(text).body == text
    assert adaptation.adapt(text).warnings == []
    assert adaptation.adapt({**chat_with_image(), "model": "other"}).warnings == []


@pytest.mark.parametrize("words", ["schema 'x' ", "does not support the image ", "recursive ", "schema .", "grammar `"])
def test_long_refusals_are_read_quickly(words: str) -> None:
    error = refusal((words * 2000)[:2000])
    started = time.process_time()
    adapted(asked_with(chat_tool())).drop_fields(error)
    adapted(chat_with_image()).drop_fields(error)
    assert time.process_time() - started < 0.2 * slowness()


# Before a client.

ANSWER = sse(chunk("Hello"), finish(), DONE)
FUNCTION = {"type": "function", "name": "f", "parameters": DAY}
IMAGE_INPUT = [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]


@pytest.mark.parametrize(
    ("refused", "fields", "warning"),
    [
        (status(400, {"error": {"message": KEYWORDS["llama.cpp"][0]}}), {"tools": [FUNCTION]}, "pattern"),
        (status(500, {"error": {"message": IMAGES["llama.cpp"][1]}}), {"input": IMAGE_INPUT}, NOTED),
        (status(404, {"error": {"message": IMAGES["OpenRouter"][1], "code": 404}}), {"input": IMAGE_INPUT}, NOTED),
    ],
    ids=["keyword", "images", "images, by a router"],
)
async def test_client_gets_the_answer_and_later_requests_are_sent_once(
    refused: list[Step], fields: dict[str, Any], warning: str
) -> None:
    async with Upstream() as upstream:
        upstream.say(refused)
        upstream.always(ANSWER)
        async with antiphon(backend_url=upstream.url) as url, httpx.AsyncClient() as client:
            for _ in range(2):
                answer = await client.post(f"{url}/v1/responses", json={"model": "m", "input": "Hi", **fields})
                assert answer.json()["status"] == "completed"
                assert warning in answer.headers["x-antiphon-warning"]
        assert len(upstream.requests) == 3
        assert upstream.requests[1].json == upstream.requests[2].json != upstream.requests[0].json


async def test_client_learns_the_keyword_of_its_text_format() -> None:
    text_format = {"type": "json_schema", "name": "x", "schema": DAY, "strict": True}
    async with Upstream() as upstream:
        upstream.say(status(400, {"error": {"message": KEYWORDS["llama.cpp"][0]}}))
        upstream.always(completion("This should not be asked."))
        async with antiphon(backend_url=upstream.url) as url, httpx.AsyncClient() as client:
            request = {"model": "m", "input": "Hi", "text": {"format": text_format}}
            answer = await client.post(f"{url}/v1/responses", json=request)
        assert len(upstream.requests) == 1
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "text.format.schema.properties.day.pattern"
