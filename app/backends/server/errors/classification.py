"""Classify backend errors by status, code and message. Every pattern matches a real server's message."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NamedTuple

from app.errors import BackendError


class ErrorClass(NamedTuple):
    status: int
    type: str
    code: str
    message: str


ERROR_CLASSES = {
    "mistake": ErrorClass(400, "invalid_request", "invalid_request", "The backend cannot serve this request."),
    "context": ErrorClass(400, "invalid_request", "context_length_exceeded", "The input is too long for the model."),
    "filter": ErrorClass(400, "invalid_request", "content_filter", "The backend's content filter refused the request."),
    "model": ErrorClass(404, "not_found", "model_not_found", "Model not found at the backend."),
    "missing": ErrorClass(404, "not_found", "not_found", "Object not found at the backend."),
    "rate": ErrorClass(429, "too_many_requests", "rate_limit_exceeded", "The backend's rate limit was exceeded."),
    # Codex shows this code to the user and does not retry.
    "quota": ErrorClass(429, "too_many_requests", "insufficient_quota", "The backend's quota is used up."),
    "overloaded": ErrorClass(
        503, "server_error", "server_is_overloaded", "The backend is overloaded, or still starting."
    ),
    "timeout": ErrorClass(504, "server_error", "timeout", "The backend did not answer in time."),
    "model_error": ErrorClass(502, "model_error", "model_error", "The model's answer could not be used."),
    "failure": ErrorClass(502, "server_error", "server_error", "The backend failed."),
    "url": ErrorClass(
        502, "server_error", "backend_url", "The backend does not have this endpoint. Check its base URL."
    ),
    # The key is this server's, so the caller cannot fix it ...
    "key": ErrorClass(502, "server_error", "backend_auth", "The backend rejected this server's API key."),
    "forbidden": ErrorClass(502, "server_error", "backend_auth", "The backend does not permit this request."),
    # ... unless it is the caller's own, forwarded.
    "own_key": ErrorClass(401, "invalid_request", "invalid_api_key", "The backend rejected the API key."),
    "own_forbidden": ErrorClass(
        403, "invalid_request", "permission_denied", "The backend does not permit this request."
    ),
}
CALLER_KEY = {"key": "own_key", "forbidden": "own_forbidden"}

# The backend's message is hidden: it can contain keys or addresses.
HIDDEN = frozenset({"key", "own_key", "url"})

# Other statuses: `mistake` from 400, `failure` from 500.
STATUSES = {
    **dict.fromkeys((*range(300, 400), 405), "url"),
    **dict.fromkeys((401, 407), "key"),
    402: "quota",
    403: "forbidden",
    404: "missing",
    **dict.fromkeys((408, 504, 524), "timeout"),
    429: "rate",
    **dict.fromkeys((498, 503, 529), "overloaded"),  # 498: Groq's flex tier is full
}

# Codes and types, reduced to letters and digits. The numbers are z.ai's and MiniMax's.
CODES = {
    code: kind
    for kind, codes in {
        "context": "contextlengthexceeded exceedcontextsizeerror modelcontextwindowexceeded outofcontexterror "
        "prompttokenstoolong modelmaxprompttokensexceeded 1261",
        "filter": "contentfilter contentpolicyviolation responsibleaipolicyviolation datainspectionfailed "
        "prohibitedcontent sensitivecontentdetected 1301 1026 1027",
        "quota": "insufficientquota billinghardlimitreached arrearage insufficientbalance 1113 1308 1309 1310 1008",
        "model": "modelnotfound modelnotfounderror deploymentnotfound modeldecommissioned 1211",
        "key": "invalidapikey apikeyinvalid incorrectapikey authenticationerror",
        "model_error": "toolusefailed",  # Groq: the model wrote an unreadable call
    }.items()
    for code in codes.split()
}


def failure(kind: str, message: str = "") -> BackendError:
    """`kind` is a key in `ERROR_CLASSES`."""
    row = ERROR_CLASSES[kind]
    return BackendError(message or row.message, code=row.code, error_type=row.type, status=row.status)


_ANY = range(1000)
_STREAM = {0}

# Class, statuses and patterns, applied in this order to code, type and message in lower case.
_RULES: tuple[tuple[str, Container[int], *tuple[str, ...]], ...] = (
    (
        "key",
        {0, 400, 401, 403, 500},  # 400: Gemini, xAI
        r"(invalid|incorrect|missing) api[ _-]?key",
        r"api key not valid",
        r"\buser: \S+ is not authorized to perform",  # AWS, with the account name
    ),
    (
        "context",
        {0, 400, 404, 413, 422, 424, 500, 501, 502},
        r"context[ _](length|window|size|limit)",  # OpenAI, vLLM, SGLang, llama.cpp, Ollama, LM Studio, MiniMax, ...
        r"(prompt|input|request) (is |was )?too (long|large for)",  # Anthropic, Bedrock, Fireworks
        r"input token count .{0,40}exceeds",  # Gemini
        r"maximum (prompt|sequence|model|input|allowed( content)?) length",  # xAI, vLLM, Databricks
        r"`inputs` must have less than",  # TGI
        r"maximum number of input tokens|number of (input )?tokens in (the|your) (prompt|input|messages)",
        r"prompt exceeds max length",  # z.ai
        r"reduce the length of (the|your) (messages|prompt|input)",  # Groq
        r"exceeded model token limit",  # Kimi
        r"tokens? \+ `?max_new_tokens`? must be",  # TGI
        r"range of input length should be",  # DashScope
        r"prompt token count of \d+ exceeds",  # Copilot
        r"(should not exceed|must be less than) max_(num_tokens|seq_len|input_len)",  # TensorRT-LLM, SiliconFlow
        r"input length \d+ exceeds|exceed max message tokens",  # Volcengine
        r"max input characters is",  # Baidu
        r"body too large for .{1,100} max size: \d+ tokens",  # GitHub Models
        r"too many (input )?tokens:",  # Cohere
        r"current length is \d+ while limit is",  # Cerebras
    ),
    (
        "filter",
        _ANY,
        r"content management policy",  # Azure
        r"content exists risk",  # DeepSeek
        r"(inappropriate|prohibited|sensitive) (content|information)",  # DashScope, Gemini, z.ai, Volcengine
        r"requires moderation|input was flagged",  # OpenRouter
        r"content violates",  # xAI
        r"blocked (by|due to) .{0,40}(safety|policy|filter)",
    ),
    (
        "quota",
        _ANY,
        r"insufficient[ _](balance|credits?|funds)",  # DeepSeek, OpenRouter, Kimi
        r"balance is too low",  # Anthropic
        r"(requires more|out of) credits",  # OpenRouter
        r"in arrears|overdue",  # DashScope
        r"used up your daily",  # Workers AI
    ),
    (
        "model",
        {0, 400, 403, 404, 422, 500},
        r"\bmodel\b.{0,200}? (does not|doesn't|not) exist",  # OpenAI, vLLM, DeepSeek
        r"\b(unknown|invalid|no such|unrecognized) model\b",  # LiteLLM
        r"not a valid model",  # OpenRouter
        r"server is pinned to",  # transformers
        r"(model|repository) ('[^']*' |\"[^\"]*\" |`[^`]*` |\S+ )?(is |was )?not found",  # Ollama, llama.cpp, mlx-lm
        r"\bmodels/\S+ is not found",  # Gemini
        r"has been (deprecated|decommissioned)",  # Groq
        r"^ not_found_error model: ",  # Anthropic
    ),
    ("overloaded", {0, 500, 502}, r"overloaded", r"loading model|model is (currently |still )?loading"),
    # llama.cpp, llama-cpp-python, mlx-lm and transformers report callers' errors as server errors.
    (
        "mistake",
        {404, 500, 501},
        r"jinja|chat template|raise_exception",
        r"roles? must alternate",
        r"(unknown|unsupported|invalid|unexpected) (message |content )?(role|message|content|part|tool|type|schema)",
        r"(is|are) not supported|does not support",
        r"only ['\"`]?text",
        r"json\.exception|validation error|literal_error|field required|'loc':|type_error",
        r"failed to parse|could not parse|expecting (value|property name|',')|unterminated string",
        r"must be (a|an|one|string|less|greater|at|in|non)\b|cannot be (empty|null)",
        r"unexpected keyword argument|extra (inputs|fields) (are )?not permitted|unknown (field|parameter)",  # LiteLLM
    ),
    ("rate", _STREAM, r"rate[ _-]?limit", r"too[ _]?many[ _]?requests", r"resource_exhausted|throttl"),
    ("timeout", _STREAM, r"timed? ?out|timeout"),
    ("mistake", _STREAM, r"invalid_?request|bad_?request|invalid_?argument|validation"),
)

_SEARCHED = 16_000  # characters at each end of a text; some servers quote the whole request

_COMPILED_RULES = [(kind, statuses, re.compile("|".join(patterns))) for kind, statuses, *patterns in _RULES]
_NOTHING_BUT_MISSING = re.compile(r"\W+|404|page|not_found\w*|not|found")


def classify(status: int, code: str = "", error_type: str = "", message: str = "") -> str:
    """A key in `ERROR_CLASSES`; status 0 is an error in a 200 response."""
    if status != 413:  # Groq's 413 has a rate limit's code, but a retry would also fail
        for name in (code, error_type):
            if kind := CODES.get(re.sub(r"[^a-z0-9]", "", name.lower())):
                return kind
    text = without_middle(f"{code} {error_type} {message}").lower()
    for rule, statuses, pattern in _COMPILED_RULES:
        if status in statuses and pattern.search(text):
            return rule
    if status == 404 and not _NOTHING_BUT_MISSING.sub("", text):
        return "url"
    return STATUSES.get(status) or ("mistake" if 400 <= status < 500 else "failure")


def without_middle(text: str) -> str:
    """The ends of a long text, because searching it all would block other requests: 1 MB takes a second."""
    return text if len(text) <= 2 * _SEARCHED else f"{text[:_SEARCHED]}\n{text[-_SEARCHED:]}"
