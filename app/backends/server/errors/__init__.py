"""Translate backend errors into API errors, without web pages and API keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.backends.server.errors.classification import CALLER_KEY, ERROR_CLASSES, HIDDEN, classify, without_middle
from app.core.http import retry_after
from app.core.redaction import REDACTED, redact
from app.core.sse.decoder import EventDecoder, encodable
from app.core.sse.repeats import RawEvent
from app.core.types import JSONObject
from app.errors import BackendError

_MAX_MESSAGE_LENGTH = 2000  # characters; some servers quote the whole request

_WRAPPERS = ("error", "errors", "detail", "base_resp", "message", "fault", "issues")
_FIELDS = {
    "message": (
        "message",
        "Message",
        "msg",
        "status_msg",
        "error_message",
        "error_msg",
        "error_description",
        "detail",
        "title",
    ),
    "code": ("code", "error_code", "status_code"),
    "type": ("type", "status"),
    "param": ("param",),
}
# Gateways' causes: OpenRouter's own message is "Provider returned error", Vercel's "Stream error occurred".
_CAUSE_PATHS = (("metadata", "raw"), ("value", "error_message"))
_STATUS_FIELDS = ("http_code", "http_status_code", "status_code", "status", "code")

# Retried statuses, as in the OpenAI SDK, unless the caller caused the error.
RETRIED = frozenset({408, 429, 500, 502, 503, 504, 529})

# HTTP status for MiniMax's `base_resp.status_code`; 0 is success.
_BASE_RESP = {
    **dict.fromkeys((1002, 1039, 1041, 2056), 429),
    **dict.fromkeys((1004, 2049), 401),
    **dict.fromkeys((1026, 1027, 1042, 2013), 400),
    1008: 402,
}


def backend_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    known: Callable[[JSONObject], JSONObject] | None = None,
    secret: str | None = None,
    host: str = "",
    passthrough: bool = False,
) -> BackendError:
    """
    The error for a response with a status other than 2xx.

    `headers` have lower-case names. `known` converts the JSON to a known form. `secret` is the key sent (with
    `passthrough`, the caller's), redacted in messages. Codes and parameters with it or with `host` are omitted.
    """
    page = "html" in headers.get("content-type", "")
    text = body.decode(errors="replace")
    wait = retry_after(headers, without_middle(text))
    parsed = None if page else _parse(text)
    if isinstance(parsed, list) and len(parsed) == 1 and isinstance(parsed[0], dict) and "error" in parsed[0]:
        parsed = parsed[0]  # Gemini: its streams are lists
    fields = _error_fields(known(parsed) if known and isinstance(parsed, dict) else parsed)
    error = _error(status, fields, wait, secret, host, passthrough)
    error.answered = status
    requested = headers.get("x-should-retry")
    error.retryable = requested == "true" or (_is_transient(status, error) and requested != "false")
    return error


def error_in_chunk(
    chunk: RawEvent, *, secret: str | None = None, host: str = "", passthrough: bool = False
) -> BackendError | None:
    if not _has_error(chunk):
        return None
    fields = _error_fields(next(_choice_errors(chunk), chunk))
    wait, status = retry_after({}, without_middle(json.dumps(chunk, default=str))), fields.get("http", 0)
    error = _error(status, fields, wait, secret, host, passthrough)
    error.retryable = error.type != "model_error" and _is_transient(status or error.status, error)
    return error


def _is_transient(status: int, error: BackendError) -> bool:
    return status in RETRIED and error.status >= 429 and error.code != ERROR_CLASSES["quota"].code


# Numbers, for example z.ai's codes, or words and indexes of a path; neither URLs nor IP addresses.
_NAME = re.compile(r"\d{1,10}|[A-Za-z_$][\w.$\[\]-]{0,127}", re.ASCII)


def _is_public(name: str, secret: str | None, host: str) -> bool:
    """Whether a name does not contain the backend's key or address."""
    if not _NAME.fullmatch(name) or redact(name) != name or (secret and secret in name):
        return False
    return name != host and ("." not in host or host not in name)


def _error(
    status: int, fields: JSONObject, wait: float | None, secret: str | None, host: str, passthrough: bool
) -> BackendError:
    code, message = str(fields.get("code", "")), str(fields.get("message", "")).strip()
    kind = classify(status, code, str(fields.get("type", "")), message)
    if passthrough:
        kind = CALLER_KEY.get(kind, kind)
    row = ERROR_CLASSES[kind]
    # A code that repeats the HTTP status is useless.
    specific = kind in ("mistake", "missing", "failure", "model_error") and re.fullmatch(
        r"(?![45]\d\d$)[\w.-]{1,64}", code
    )
    param = str(fields.get("param") or "")
    quoted = bool(message) and kind not in HIDDEN
    error = BackendError(
        scrubbed(message, secret) if quoted else row.message,
        param=param if _is_public(param, secret, host) else None,
        code=code if specific and _is_public(code, secret, host) else row.code,
        error_type=row.type,
        status=row.status,
        retry_after=wait if row.status in (429, 503) else None,
    )
    error.quoted = quoted
    return error


def _error_fields(value: object) -> JSONObject:
    """`message`, `code`, `type`, `param` and `http` (status), as far as known."""
    if isinstance(value, str):
        nested = _parse(value) if value.startswith("{") else None  # another server's error as the message
        fields = _error_fields(nested) if isinstance(nested, dict) else {}
        return fields if "message" in fields else {"message": value} if value.strip() else {}
    if isinstance(value, list):
        return _fields_in_list(value)
    if not isinstance(value, dict):
        return {}
    fields = dict(_direct_fields(value))
    for wrapper in _WRAPPERS:
        if inner := _error_fields(value.get(wrapper)):
            if wrapper == "base_resp":
                inner["http"] = _BASE_RESP.get(value[wrapper].get("status_code"), 0)
            fields |= inner
            break
    for wrapper, name in _CAUSE_PATHS:
        outer = value.get(wrapper)
        if isinstance(outer, dict) and isinstance(raw := outer.get(name), str):
            fields |= _error_fields(_parse(raw))
    return fields


def _fields_in_list(values: list[Any]) -> JSONObject:
    invalid = [
        value for value in values if isinstance(value, dict) and "msg" in value and isinstance(value.get("loc"), list)
    ]
    if not invalid:
        return _error_fields(values[0]) if values else {}
    # FastAPI lists the invalid fields.
    paths = [".".join(map(str, field["loc"])).removeprefix("body.") for field in invalid]
    message = "; ".join(f"{path}: {field['msg']}" for path, field in zip(paths, invalid, strict=True))
    return {"message": message, "param": paths[0]}


def _direct_fields(value: JSONObject) -> Iterator[tuple[str, Any]]:
    for field, names in _FIELDS.items():
        for name in names:
            text = value.get(name)
            if isinstance(text, str | int) and not isinstance(text, bool) and text not in ("", "error"):
                yield field, text
                break
    for name in _STATUS_FIELDS:
        if re.fullmatch(r"[45]\d\d", str(value.get(name))):
            yield "http", int(value[name])
            break


def _parse(text: str) -> Any:
    """JSON, the chunk with the error, or text; None for HTML."""
    text = text.strip().removeprefix("\ufeff")
    if text[:1] in ("{", "[", '"'):
        try:
            return encodable(json.loads(text))
        except (ValueError, RecursionError):
            return text
    if re.match(r"(data|event|id|retry|):", text):  # DashScope: an event stream with an error, with status 400
        decoder = EventDecoder()
        chunks = [*decoder.decode(text.encode(errors="replace")), *decoder.end()]
        return next((chunk for chunk in chunks if isinstance(chunk, dict) and _has_error(chunk)), None)
    return None if re.search(r"<(!doctype|html|head|body|title|h1)\b", text[:2000].lower()) else text


def _has_error(chunk: RawEvent) -> bool:
    if chunk.get("error") or "error" in (chunk.get("object"), chunk.get("type")):
        return True
    base_resp = chunk.get("base_resp")
    if isinstance(base_resp, dict) and base_resp.get("status_code"):
        return True
    if "choices" in chunk:
        return any(_choice_errors(chunk))
    if chunk.get("code") in _SUCCESS_CODES and chunk.get("success") is not False:
        return False  # Spark sends "Success" as the message
    return bool(chunk.get("errors")) or any(isinstance(chunk.get(name), str) for name in _MESSAGE_FIELDS)


_SUCCESS_CODES = (0, "0", 200, "200")
_MESSAGE_FIELDS = ("message", "detail", "msg", "error_msg")  # z.ai sends `msg`, Baidu `error_msg`


def _choice_errors(chunk: RawEvent) -> Iterator[Any]:
    groq = chunk.get("x_groq")
    if isinstance(groq, dict) and groq.get("error"):
        yield groq["error"]
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("error"):
            yield choice["error"]


# File paths in FastAPI's tracebacks.
_TRACE = re.compile(r'\n[ \t]*(?:Traceback \(most recent call last\):|File "[^"\n]+", line \d+).*', re.DOTALL)


def scrubbed(text: str, secret: str | None = None) -> str:
    """Truncate a text; redact the secret, strings like API keys, and tracebacks."""
    if len(text) > 2 * _MAX_MESSAGE_LENGTH:  # for fast patterns; a truncated word may be part of a key
        text = text[: 2 * _MAX_MESSAGE_LENGTH]
        text = text.rpartition(" ")[0] or text
    if secret:
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text)
    text = redact(_TRACE.sub("", text)).rstrip()
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[:_MAX_MESSAGE_LENGTH]}..."
