"""
A Gemini server on a real socket, with Google's rules for requests.

    async with GeminiServer() as server:
        server.say(answer(text("Hello"), finish="STOP", usage=USAGE))

Refusals have Google's messages. Requests and answers are validated by the types in the official package,
`google-genai`. A signature must come back on its part.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.upstream import Received, Step, Upstream, reply, sse, status

Fields = dict[str, Any]

_TOP = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
_TOP |= {"store", "serviceTier", "labels", "cachedContent"}
PLACEHOLDER = "skip_thought_signature_validator"


class Refused(Exception):
    """A request for which the server answers 400."""


def check_types(body: Fields) -> None:
    """Raise `Refused` if a request is not as the official package has it."""
    from google.genai import types  # takes a second

    if unknown := body.keys() - _TOP:
        raise Refused(f'Invalid JSON payload received. Unknown name "{min(unknown)}": Cannot find field.')
    if "contents" not in body:
        raise Refused("* GenerateContentRequest.contents: contents is not specified")
    models: dict[str, Any] = {"generationConfig": types.GenerationConfig, "toolConfig": types.ToolConfig}
    try:
        for name, model in models.items():
            if name in body:
                model.model_validate_json(json.dumps(body[name]))
        for content in [*body["contents"], *([body["systemInstruction"]] if "systemInstruction" in body else ())]:
            types.Content.model_validate_json(json.dumps(content, ensure_ascii=False).encode(errors="replace"))
        for tool in body.get("tools", ()):
            types.Tool.model_validate_json(json.dumps(tool))
        for setting in body.get("safetySettings", ()):
            types.SafetySetting.model_validate_json(json.dumps(setting))
    except ValueError as error:
        raise Refused(f"Invalid JSON payload received. {error}") from error


def check(body: Fields, *, level: bool = True) -> None:
    """Raise `Refused` for an invalid request; `level`: for a model with thinking levels."""
    check_types(body)
    _check_contents(body["contents"], signed=level)
    _check_tools(body)
    config = body.get("generationConfig", {})
    thinking = config.get("thinkingConfig", {})
    if ("thinkingBudget" if level else "thinkingLevel") in thinking:
        raise Refused("Thinking budget and level are not supported for this model.")
    if "responseJsonSchema" in config and config.get("responseMimeType") != "application/json":
        raise Refused("response_schema is only supported with response_mime_type application/json")
    if not level and "responseMimeType" in config and "tools" in body:
        raise Refused("Function calling with a response mime type: 'application/json' is unsupported")


def _check_contents(contents: Sequence[Fields], *, signed: bool) -> None:
    if not contents:
        raise Refused("* GenerateContentRequest.contents: contents is not specified")
    if contents[0]["role"] != "user" or contents[-1]["role"] != "user":
        raise Refused("Please ensure that multiturn requests begin and end with a user role or a function response.")
    due: list[Fields] = []
    for n, content in enumerate(contents):
        parts = content.get("parts")
        if not parts:
            raise Refused(f"* GenerateContentRequest.contents[{n}].parts: contents.parts must not be empty.")
        for part in parts:
            _check_part(part, n)
        responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if [(one["name"], one.get("id")) for one in responses] != [(one["name"], one.get("id")) for one in due]:
            raise Refused(
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        calls = [part for part in parts if "functionCall" in part]
        due = [part["functionCall"] for part in calls]
        if signed and calls and "thoughtSignature" not in calls[0]:
            raise Refused(f"Function call is missing a thought_signature in functionCall parts: {n}.")
    if due:
        raise Refused("Please ensure that function response turn comes immediately after a function call turn.")


_DATA = ("text", "inlineData", "fileData", "functionCall", "functionResponse")


def _check_part(part: Fields, n: int) -> None:
    if len(part.keys() & set(_DATA)) != 1:
        raise Refused(f"* GenerateContentRequest.contents[{n}].parts[0].data: required oneof field must have one value")
    signature = part.get("thoughtSignature")
    if part.get("text") == "" and not signature:
        raise Refused("Unable to submit request because it must have a text parameter.")
    if signature and signature not in (PLACEHOLDER, signature_of(part)) and part.get("text") != "":
        raise Refused("Corrupted thought signature.")
    if (blob := part.get("inlineData")) and not re.fullmatch(
        r"(image|audio|video)/[\w.+-]+|application/pdf", blob["mimeType"]
    ):
        raise Refused(f"Unsupported MIME type: {blob['mimeType']}")


def _check_tools(body: Fields) -> None:
    names: list[str] = []
    for tool in body.get("tools", ()):
        for function in tool.get("functionDeclarations", ()):
            if not re.fullmatch(r"[a-zA-Z_][\w.:-]{0,127}", function["name"]):
                raise Refused("Invalid function name. Must start with a letter or an underscore.")
            if function.get("parametersJsonSchema", {"type": "object"}).get("type") != "object":
                raise Refused("functionDeclaration parameters schema should be of type OBJECT")
            names.append(function["name"])
    if len({*names}) < len(names):
        raise Refused("Duplicate function declaration found")
    config = body.get("toolConfig", {}).get("functionCallingConfig", {})
    if config and not names:
        raise Refused("Function calling config is set without function_declarations.")
    if config.get("allowedFunctionNames") and config["mode"] not in ("ANY", "VALIDATED"):
        raise Refused("allowed_function_names should only be set when the mode is ANY or VALIDATED.")
    if not {*config.get("allowedFunctionNames", ())} <= {*names}:
        raise Refused("allowed_function_names has a name that is not declared.")


# Answers.


def signature_of(part: Fields) -> str:
    """Return the signature of a part."""
    content = {name: value for name, value in part.items() if name not in ("thoughtSignature", "thought")}
    if "functionCall" in content:
        content = {"name": content["functionCall"]["name"], "args": content["functionCall"].get("args", {})}
    written = json.dumps(content, sort_keys=True).encode(errors="replace")
    return base64.b64encode(hashlib.sha256(written).digest()).decode()


def signed(part: Fields) -> Fields:
    """Return a part with its signature."""
    return {**part, "thoughtSignature": signature_of(part)}


def text(written: str) -> Fields:
    return {"text": written}


def thought(written: str) -> Fields:
    return {"text": written, "thought": True}


def call(name: str, arguments: Fields | None = None, call_id: str | None = None) -> Fields:
    return {"functionCall": {"name": name, "args": arguments or {}, **({"id": call_id} if call_id else {})}}


USAGE = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}


def event(*parts: Fields, finish: str | None = None, usage: Fields | None = None, **candidate: Any) -> Fields:
    """Return a stream event in the official package's form."""
    from google.genai import types

    content = {"content": {"role": "model", "parts": [*parts]}} if parts else {}
    made: Fields = {
        "candidates": [{**content, **({"finishReason": finish} if finish else {}), "index": 0, **candidate}]
    }
    made |= {"usageMetadata": usage} if usage else {}
    made |= {"modelVersion": "m", "responseId": "r-1"}
    if "citationMetadata" not in candidate:  # its field has another name in the package
        types.GenerateContentResponse.model_validate_json(json.dumps(made))
    return made


def events(*parts: Fields, finish: str = "STOP", usage: Fields = USAGE, **candidate: Any) -> list[Fields]:
    """Return an answer's events, one per part and an end."""
    return [*(event(part) for part in parts), event(finish=finish, usage=usage, **candidate)]


def answer(*parts: Fields, **ending: Any) -> list[Step]:
    """Return an answer as a stream; `ending` has the arguments of `events`."""
    return sse(*events(*parts, **ending))


def error(code: int, kind: str, message: str, *details: Fields, headers: Mapping[str, str] | None = None) -> list[Step]:
    """Return an error in Google's form."""
    return status(code, error_document(code, kind, message, *details), headers)


def error_document(code: int, kind: str, message: str, *details: Fields) -> Fields:
    return {"error": {"code": code, "message": message, "status": kind, "details": [*details]}}


class GeminiServer(Upstream):
    """
    Refuses bad requests, and answers others by script.

    `level`: see `check`. `counted`: the token count in answers to `countTokens`.
    """

    def __init__(self, *, level: bool = True) -> None:
        super().__init__()
        self.level = level
        self.counted = 17
        self.refusals: list[str] = []
        self.listings: list[Received] = []  # requests for the list of models
        self.listed: list[Fields] = [
            {
                "name": "models/gemini-3-pro",
                "displayName": "Gemini 3 Pro",
                "inputTokenLimit": 1048576,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            },
            {"name": "models/gemini-embedding-001", "supportedGenerationMethods": ["embedContent"]},
        ]
        self.always(answer(text("Hello"), text(" there.")))

    def answer_to(self, request: Received) -> list[Step]:
        """Refuse a bad request, or choose the steps for it."""
        path, _, query = request.path.partition("?")
        if request.method == "GET" and path.endswith("/models"):
            self.listings.append(request)
            return reply(json.dumps({"models": self.listed}).encode())
        if path.endswith(":countTokens"):
            self.requests.append(request)
            check_counted(request.json, wrapped="/publishers/" not in path)
            return reply(json.dumps({"totalTokens": self.counted}).encode())
        if not path.endswith(":streamGenerateContent"):
            return status(404)
        try:
            if query != "alt=sse":
                raise Refused("alt=sse is missing")
            check(request.json, level=self.level)
        except Refused as refused:
            self.requests.append(request)
            self.refusals.append(str(refused))
            return error(400, "INVALID_ARGUMENT", str(refused))
        return super().answer_to(request)


def check_counted(body: Fields, *, wrapped: bool) -> None:
    """Check a request to count tokens, which AI Studio wants as a whole request in a field."""
    if wrapped:
        assert body.keys() == {"generateContentRequest"}
        body = {**body["generateContentRequest"]}
        assert body.pop("model").startswith("models/")
    check_types(body)
