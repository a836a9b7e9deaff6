"""
Find request content that a server refused, and rewrite it: images, later system messages and schema keywords.

Images become notes or descriptions. Agents such as Claude Code send system messages within the conversation, but some
chat templates (Qwen since 3.5, and others) accept them only at the start.

Only schema keywords that narrow or annotate a value are removed: the client validates arguments anyway. They stay in
strict tools and text formats, which the server enforces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from app.backends.server.errors.unsupported_fields import DECLARATIONS, declared_functions
from app.core.profile import ContentOptions
from app.core.request.content import NOTE, NOTE_WARNING, string_or_parts
from app.core.request.roles import SYSTEM, as_note, merge
from app.core.request.tool_types import keyword_paths, mfjs, stripped
from app.core.types import JSONMapping, JSONObject, json_list, json_object
from app.errors import BackendError, quote

REFUSED_IMAGE = "messages[].image"
IMAGE_WARNING = NOTE_WARNING.format("input_image")

_NOTE = NOTE.format("input_image")
_IMAGE_TYPES = frozenset({"image_url", "image", "input_image"})
# Lists that can contain images, and their text type; Gemini parts have no type.
_TEXT_TYPES = {"messages": "text", "input": "input_text", "contents": None}
_KEPT_FIELDS = ("cache_control", "prompt_cache_breakpoint")

# Errors about a format, size or position must not match: the model would lose images that it accepts.
_IMAGES = r"(?:any |the )?(?:images?|vision|multimodal)(?: content| inputs?| modality| blocks?| parts?)*(?: that you)?"
_END_OF_IMAGES = r"(?= (?:by|for|in|with|on) (?:this|the )[\w ]{0,12}model| for model| provided|\s*(?:[.,;:!)]|- |$))"
_REFUSED_IMAGES = re.compile(
    "|".join(
        (
            r"unknown variant [`'\"](?:image_url|input_image|image)\b",  # serde: DeepSeek
            r"tag ['\"](?:image_url|input_image|image)['\"] found",  # pydantic
            r"image_url['\"`]? is only supported by certain models",  # OpenAI
            # LM Studio, Bedrock
            rf"(?:does not|doesn't|do not|cannot) (?:support|accept|take|process) {_IMAGES}{_END_OF_IMAGES}",
            # llama.cpp, Mistral, xAI, Moonshot
            rf"(?:images are|image (?:content|inputs?) (?:is |are )?) ?not (?:supported|enabled){_END_OF_IMAGES}",
            r"missing data required for image input",  # Ollama
            r"is not a multimodal model",  # vLLM, SGLang
            r"at most 0 image",  # vLLM
            r"image input modality is not enabled",  # Gemini
            r"no endpoints found that support image input",  # OpenRouter
        )
    ),
    re.IGNORECASE,
)


def refuses_images(error: BackendError, body: JSONMapping) -> bool:
    is_refusal = error.status in (400, 404) or error.answered == 500  # 404: OpenRouter; 500: llama.cpp and Ollama
    return is_refusal and bool(_REFUSED_IMAGES.search(error.message)) and holds_images(body)


def holds_images(body: JSONMapping) -> bool:
    return any(_has_image(message) for name in _TEXT_TYPES for message in json_list(body.get(name)))


def undescribed_urls(body: JSONMapping, descriptions: Mapping[str, str]) -> list[str]:
    urls = (url for name in _TEXT_TYPES for message in json_list(body.get(name)) for url in _image_urls(message))
    return [url for url in dict.fromkeys(urls) if url not in descriptions]


def replace_images(
    body: JSONObject, options: ContentOptions, descriptions: Mapping[str, str] | None = None
) -> JSONObject:
    texts = descriptions or {}
    changed = {
        name: [_replaced(message, text_type, options, texts) for message in body[name]]
        for name, text_type in _TEXT_TYPES.items()
        if isinstance(body.get(name), list)
    }
    return {**body, **changed}


_CONTENT = ("content", "output", "parts")  # `output`: in `function_call_output`; `parts`: Gemini
_RESPONSE = "functionResponse"  # Gemini; its parts cannot be text
_DATA = ("inlineData", "fileData")  # Gemini


def _is_image(part: JSONMapping) -> bool:
    return part.get("type") in _IMAGE_TYPES or any(
        str(json_object(part.get(name)).get("mimeType")).startswith("image/") for name in _DATA
    )


def _inner(part: JSONMapping) -> Iterator[object]:
    for name in _CONTENT:
        yield from json_list(part.get(name))
    yield part.get(_RESPONSE)


def _has_image(part: object) -> bool:
    return isinstance(part, dict) and (_is_image(part) or any(map(_has_image, _inner(part))))


def _image_urls(part: object) -> Iterator[str]:
    if not isinstance(part, dict):
        return
    if _is_image(part):
        yield _image_url(part)
    for inner in _inner(part):
        yield from _image_urls(inner)


def _image_url(part: JSONMapping) -> str:
    """The same URL in all APIs, so that descriptions apply to all."""
    if inline := part.get("inlineData"):
        return f"data:{inline.get('mimeType')};base64,{inline.get('data')}"
    if file := part.get("fileData"):
        return str(file.get("fileUri") or "")
    image = part.get("image_url") or {}
    if isinstance(image, str):  # Responses
        return image
    source = part.get("source") or image  # Messages, or chat
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source.get("url") or "")


def _replaced(part: Any, text_type: str | None, options: ContentOptions, texts: Mapping[str, str]) -> Any:
    if not _has_image(part):
        return part
    if _is_image(part):
        typed = {"type": text_type} if text_type else {}
        return {**typed, "text": _note_text(part, texts), **{name: part[name] for name in _KEPT_FIELDS if name in part}}
    result = dict(part)
    if _RESPONSE in part:
        result[_RESPONSE] = _replaced_in_response(part[_RESPONSE], texts)
    for name in _CONTENT:
        if any(map(_has_image, inner := json_list(part.get(name)))):
            replaced = [_replaced(each, text_type, options, texts) for each in inner]
            form = options.tool_content if part.get("role") == "tool" else options.parts
            of_chat = any(isinstance(each, dict) and each.get("type") == "image_url" for each in inner)
            result[name] = string_or_parts(replaced, form) if of_chat else replaced
    return result


def _note_text(part: JSONMapping, texts: Mapping[str, str]) -> str:
    return texts.get(_image_url(part), _NOTE) if texts else _NOTE


def _replaced_in_response(response: JSONObject, texts: Mapping[str, str]) -> JSONObject:
    images = [part for part in response["parts"] if _is_image(part)]
    others = [part for part in response["parts"] if not _is_image(part)]
    output = "\n".join(
        filter(None, (response["response"].get("output"), *(_note_text(part, texts) for part in images)))
    )
    kept = {name: value for name, value in response.items() if name != "parts"}
    return {**kept, "response": {**response["response"], "output": output}, **({"parts": others} if others else {})}


SYSTEM_FIRST = "messages[].system"  # all system messages but the first
SYSTEM_WARNING = "This backend supports system messages only at the start; later ones were sent as user notes."

_REFUSED_SYSTEM = re.compile(
    r"system (?:message|prompt|role)s? (?:must|should|can only|has to|may only) (?:only )?(?:be|come|appear|occur)"
    r" (?:at the (?:very )?(?:beginning|start)|first|the first)"  # Qwen (vLLM, llama.cpp, Ollama), MiniMax
    r"|(?:only|just) (?:one|a single|the first) (?:system message|message (?:can|may) be (?:a )?system)",
    re.IGNORECASE,
)


def refuses_later_system(error: BackendError, body: JSONMapping) -> bool:
    is_refusal = error.status in (400, 422) or error.answered == 500  # 500: llama.cpp and Ollama
    return is_refusal and bool(_REFUSED_SYSTEM.search(error.message)) and has_later_system(body)


def has_later_system(body: JSONMapping) -> bool:
    return any(_is_system(message) for message in json_list(body.get("messages"))[1:])


def with_system_first(body: JSONObject) -> JSONObject:
    """Merge system messages at the start; later ones become notes in the user's turn."""
    messages = json_list(body.get("messages"))
    lead = list(takewhile(_is_system, messages))
    rest = [
        {**message, "role": "user", "content": as_note(message["content"])} if _is_system(message) else message
        for message in messages[len(lead) :]
    ]
    return {**body, "messages": [*([merge(lead)] if lead else []), *rest]}


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in SYSTEM


PARAMETERS = "tools[].parameters."  # prefix for a rejected keyword as a field name
_FORM = "(form)"  # instead of a keyword: schemas are rewritten (`mfjs`)
_REFUSED_FORM = re.compile(r"type should be defined in anyOf|found after \$ref expansion|items must be an object")

_REMOVABLE = (
    *("pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "default"),
    *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    *("minProperties", "maxProperties", "propertyNames", "patternProperties", "additionalProperties"),
    *("unevaluatedProperties", "dependentRequired", "dependentSchemas", "not", "if", "then", "else"),
    *("title", "examples", "example", "deprecated", "readOnly", "writeOnly", "nullable"),
    *("$schema", "$id", "$comment", "$anchor", "$ref", "$defs", "definitions"),
)
_ANY_KEYWORD = "|".join(map(re.escape, _REMOVABLE))

# Keywords in schema errors: quoted, at the end of a path, or after the word "keyword".
_ABOUT_SCHEMAS = re.compile(r"schema|grammar|keyword|parameters|function_declarations", re.IGNORECASE)
_NAMED_KEYWORD = re.compile(
    rf"""(?:(?<!properties[./\[])(?<!text\.)(?<=['"`./])|(?<=keyword ))({_ANY_KEYWORD})(?=['"`:\s]|[.,](?:\s|$)|$)"""
)

# Keywords for errors that name none; the rows are tried in order.
_GRAMMAR = r"failed to parse grammar|failed to (?:compile|convert)[^.]{0,40} grammar|JSON schema conversion failed"
_UNNAMED_KEYWORDS = (
    (r"Pattern must (?:start|end)|pattern syntax|Unbalanced \w+|in curly brackets", ("pattern",)),  # llama.cpp
    (r"(?:recursive|circular|cyclic|infinite)[^.]{0,60}(?:schema|ref|definition)", ("$ref",)),
    (r"(?:schema|ref|definition)[^.]{0,60}(?:recursi|circular|cyclic)|(?:resolving|Unsupported) ref\b", ("$ref",)),
    # llama.cpp, LM Studio, Ollama: usually `\d` in a pattern, or too many repetitions
    (_GRAMMAR, ("pattern",)),
    (_GRAMMAR, ("minLength", "maxLength", "minItems", "maxItems")),
    (_GRAMMAR, ("format",)),
)


def refused_keywords(error: BackendError, body: JSONMapping) -> list[str]:
    if _REFUSED_FORM.search(error.message) and error.status == 400:
        return [f"{PARAMETERS}{_FORM}"] if _in_mfjs(body) != body else []
    groups = [*_reported_keywords(error)]
    removable = _removable(body) if groups else frozenset()
    for group in groups:
        if removed := [keyword for keyword in group if keyword in removable]:
            return [f"{PARAMETERS}{keyword}" for keyword in removed]
        if _find_enforced(group, body):
            break
    return []


def enforced_keyword(error: BackendError, body: JSONMapping) -> tuple[str, str] | None:
    """The caller's field with a rejected keyword that must stay, and a sentence about it."""
    for group in _reported_keywords(error):
        if kept := _find_enforced(group, body):
            keyword, place, tool = kept
            param = "tools" if tool else f"{_FORMAT_SCHEMA}.{place}"
            at = f"at {quote(place)} in {f'the strict tool {quote(tool)}' if tool else f'{_FORMAT_SCHEMA!r}'}"
            return param, f"The keyword '{keyword}' {at} was kept, because the schema is enforced."
    return None


def without_keywords(body: JSONObject, keywords: Sequence[str]) -> tuple[JSONObject, list[str]]:
    if _FORM in keywords:
        body = _in_mfjs(body)
    removable = _removable(body) if keywords else frozenset()
    if not (removed := [keyword for keyword in keywords if keyword in removable]):
        return body, []
    return {**body, "tools": [_without_keywords(tool, frozenset(removed)) for tool in body["tools"]]}, removed


def _in_mfjs(body: JSONMapping) -> JSONObject:
    return {**body, "tools": [_with_schemas(tool, mfjs) for tool in body["tools"]]} if body.get("tools") else {**body}


def _with_schemas(tool: JSONObject, change: Callable[[object], object]) -> JSONObject:
    function = tool.get("function", tool)
    if tool.get("type", "function") != "function":
        return tool
    function = {**function, **{name: change(function[name]) for name in _SCHEMA_FIELDS if name in function}}
    return {**tool, "function": function} if "function" in tool else function


def _without_keywords(tool: JSONObject, keywords: frozenset[str]) -> JSONObject:
    if DECLARATIONS in tool:
        return {**tool, DECLARATIONS: [_without_keywords(function, keywords) for function in tool[DECLARATIONS]]}
    if tool.get("function", tool).get("strict"):
        return tool
    return _with_schemas(tool, lambda schema: stripped(schema, keywords))


_SCHEMA_FIELDS = ("parameters", "input_schema", "parametersJsonSchema")


_FORMAT_SCHEMA = "text.format.schema"


def _removable(body: JSONMapping) -> frozenset[str]:
    """Keywords in the schemas of tools that are not strict."""
    schemas = (tool.get(name) for tool in declared_functions(body) if not tool.get("strict") for name in _SCHEMA_FIELDS)
    return frozenset(keyword for schema in schemas for keyword, _ in keyword_paths(schema))


def _enforced_schemas(body: JSONMapping) -> Iterator[tuple[object, str]]:
    """Schemas with the name of their strict tool, or "" for the text format."""
    for function in declared_functions(body):
        if function.get("strict"):
            yield from ((function.get(name), str(function.get("name"))) for name in _SCHEMA_FIELDS)
    chat = json_object(json_object(body.get("response_format")).get("json_schema"))
    responses = json_object(json_object(body.get("text")).get("format"))
    messages = json_object(json_object(body.get("output_config")).get("format"))
    gemini = {"schema": json_object(body.get("generationConfig")).get("responseJsonSchema")}
    yield from ((text_format.get("schema"), "") for text_format in (chat, responses, messages, gemini))


def _find_enforced(group: tuple[str, ...], body: JSONMapping) -> tuple[str, str, str] | None:
    """A keyword in an enforced schema, its path, and its strict tool's name."""
    for schema, tool in _enforced_schemas(body):
        for keyword, place in keyword_paths(schema):
            if keyword in group:
                return keyword, place, tool
    return None


def _reported_keywords(error: BackendError) -> Iterator[tuple[str, ...]]:
    if error.status != 400 and error.answered != 500:
        return
    if _ABOUT_SCHEMAS.search(error.message) and (named := _NAMED_KEYWORD.findall(error.message)):
        yield tuple(dict.fromkeys(named))
    for words, keywords in _UNNAMED_KEYWORDS:
        if re.search(words, error.message, re.IGNORECASE):
            yield keywords
