"""Refusals: every envelope is read, every meaning has its row, and nothing leaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.backends.server.errors import backend_error, error_in_chunk, scrubbed
from app.errors import BackendError


def refused(status: int, body: Any, headers: dict[str, str] | None = None, **options: Any) -> BackendError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return backend_error(status, headers or {}, data, **options)


def seen(error: BackendError) -> tuple[int, str, str, str, str | None]:
    return error.status, error.type, error.code, error.message, error.param


ENVELOPES: dict[str, tuple[Any, str, str, str | None]] = {
    "OpenAI": (
        {
            "error": {
                "message": "Unknown parameter: 'x'.",
                "type": "invalid_request_error",
                "param": "x",
                "code": "unknown_parameter",
            }
        },
        "Unknown parameter: 'x'.",
        "unknown_parameter",
        "x",
    ),
    "vLLM, llama.cpp: the code is the status": (
        {"error": {"message": "bad", "type": "BadRequestError", "param": None, "code": 400}},
        "bad",
        "invalid_request",
        None,
    ),
    "SGLang, flat": (
        {"object": "error", "message": "bad", "type": "BadRequestError", "param": None, "code": 400},
        "bad",
        "invalid_request",
        None,
    ),
    "FastAPI": ({"detail": "bad"}, "bad", "invalid_request", None),
    "FastAPI, field by field": (
        {
            "detail": [
                {"type": "missing", "loc": ["body", "model"], "msg": "Field required"},
                {"loc": ["body", "n"], "msg": "no"},
            ]
        },
        "model: Field required; n: no",
        "invalid_request",
        "model",
    ),
    "Mistral, with FastAPI's inside": (
        {
            "object": "error",
            "message": {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
        },
        "seed: Extra inputs are not permitted",
        "invalid_request",
        "seed",
    ),
    "Mistral, with a number of its own": (
        {
            "object": "error",
            "message": "Unexpected role 'user' after role 'tool'",
            "type": "x",
            "param": None,
            "code": "3230",
        },
        "Unexpected role 'user' after role 'tool'",
        "3230",
        None,
    ),
    "LM Studio, mlx-lm": ({"error": "bad"}, "bad", "invalid_request", None),
    "xAI": ({"code": "invalid-argument", "error": "bad"}, "bad", "invalid-argument", None),
    "Cerebras": (
        {"message": "bad", "type": "invalid_request_error", "param": "messages", "code": "wrong_api_format"},
        "bad",
        "wrong_api_format",
        "messages",
    ),
    "MiniMax": (
        {"type": "error", "error": {"type": "bad_request_error", "message": "bad", "http_code": "400"}},
        "bad",
        "invalid_request",
        None,
    ),
    "MiniMax, old": ({"base_resp": {"status_code": 2013, "status_msg": "bad"}}, "bad", "2013", None),
    "Gemini": (
        [{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}],
        "bad",
        "invalid_request",
        None,
    ),
    "OpenRouter, with the provider's inside": (
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": '{"error": {"message": "bad"}}'},
            }
        },
        "bad",
        "invalid_request",
        None,
    ),
    "Vercel's gateway, with the provider's inside": (
        {
            "error": {
                "code": "error",
                "message": "Stream error",
                "value": {"error_message": '{"error": {"message": "bad"}}'},
            }
        },
        "bad",
        "invalid_request",
        None,
    ),
    "a gateway, with the provider's for a message": (
        {"error": {"message": '{"error": {"message": "bad", "code": "odd", "param": "n"}}', "type": "gateway"}},
        "bad",
        "odd",
        "n",
    ),
    "a message that only looks like an envelope": ({"error": {"message": "{bad}"}}, "{bad}", "invalid_request", None),
    "JavaScript: half a character, inside": (
        b'{"error": {"message": "Provider returned error", "metadata": {"raw": "bad \\ud83d"}}}',
        "bad \ufffd",
        "invalid_request",
        None,
    ),
    "JavaScript: half a character": (b'{"error": "bad \\ud83d"}', "bad \ufffd", "invalid_request", None),
    "JavaScript: half a character, twice encoded": (
        b'{"error": {"message": "{\\"message\\": \\"bad \\\\ud83d\\"}"}}',
        "bad \ufffd",
        "invalid_request",
        None,
    ),
    "DashScope: an event stream": (
        b'id:1\nevent:error\n:HTTP_STATUS/400\ndata:{"error":{"message":"bad","code":"InvalidParameter"}}\n\n',
        "bad",
        "InvalidParameter",
        None,
    ),
    "DashScope: data alone": (b'data: {"error": {"message": "bad", "code": null}}', "bad", "invalid_request", None),
    "AWS": ({"Message": "bad"}, "bad", "invalid_request", None),
    "Baidu": ({"error_code": 336003, "error_msg": "bad", "id": "as-1"}, "bad", "336003", None),
    "Zod": (
        {"success": False, "error": {"name": "ZodError", "issues": [{"path": ["messages", 0], "message": "bad"}]}},
        "bad",
        "invalid_request",
        None,
    ),
    "a string": ("bad", "bad", "invalid_request", None),
    "plain text": (b"bad", "bad", "invalid_request", None),
    "broken JSON": (b'{"error": "ba', '{"error": "ba', "invalid_request", None),
    "nothing": (b"", "The backend cannot serve this request.", "invalid_request", None),
    "null": (None, "null", "invalid_request", None),
    "an empty envelope": ({"error": {}}, "The backend cannot serve this request.", "invalid_request", None),
}


@pytest.mark.parametrize(("body", "message", "code", "param"), ENVELOPES.values(), ids=ENVELOPES)
def test_error_in_an_envelope_is_read(body: Any, message: str, code: str, param: str | None) -> None:
    assert seen(refused(400, body)) == (400, "invalid_request", code, message, param)


@pytest.mark.parametrize(
    "body",
    [
        b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>",
        b"<!DOCTYPE html><p>x",
        b"\n <h1>Oops</h1>",
        b"some text <body>",
    ],
)
def test_web_page_is_not_shown(body: bytes) -> None:
    assert seen(refused(502, body)) == (502, "server_error", "server_error", "The backend failed.", None)


def test_body_labelled_as_a_web_page_is_not_shown() -> None:
    assert refused(500, b"<b>x</b>", {"content-type": "text/html; charset=utf-8"}).message == "The backend failed."


OVERFLOWS = {
    "OpenAI": "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
    "OpenAI, responses": "Your input exceeds the context window of this model.",
    "vLLM": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "llama-cpp-python": "Requested tokens (5000) exceed context window of 4096",
    "Ollama": "input length exceeds maximum context length",
    "LM Studio": "Trying to keep the first 5000 tokens when context the overflows. However, the context length is 4096",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    "TGI, without the answer": "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
    "TensorRT-LLM": "The sum of prompt length (5000) and max tokens should not exceed max_num_tokens (4096)",
    "Anthropic": "prompt is too long: 213462 tokens > 200000 maximum",
    "Anthropic, with the answer": "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000",
    "Bedrock": "Input is too long for requested model.",
    "Gemini": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Groq": "Please reduce the length of the messages or completion.",
    "Kimi": "Your request exceeded model token limit: 262144 (requested: 291351)",
    "MiniMax": "invalid params, context window exceeds limit",
    "Mistral": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "z.ai": "Prompt exceeds max length",
    "DashScope": "Range of input length should be [1, 98304]",
    "Cerebras": "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    "Copilot": "prompt token count of 130000 exceeds the limit of 128000",
    "Fireworks": "The prompt is too long: 300000, model maximum context length: 131072",
    "Cohere": "too many tokens: size limit exceeded by 120 tokens.",
    "Databricks": "Input exceeds maximum allowed content length",
    "GitHub Models": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "SiliconFlow": "length of prompt_tokens (40000) must be less than max_seq_len (32768).",
    "Volcengine": "Total tokens of image and text exceed max message tokens. Request id: 02",
    "Volcengine, of text": "Input length 140000 exceeds the maximum length 131072",
    "Baidu": "the max input characters is 516096",
    "gateways": "Token limit exceeded: the maximum number of input tokens is 8192",
    "gateways, of the prompt": "The number of tokens in the prompt exceeds the limit",
}


@pytest.mark.parametrize("message", OVERFLOWS.values(), ids=OVERFLOWS)
@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_input_that_is_too_long_is_recognised(status: int, message: str) -> None:
    error = refused(status, {"error": {"message": message}})
    assert seen(error) == (400, "invalid_request", "context_length_exceeded", message, None)


MEANINGS: dict[str, tuple[int, Any, tuple[int, str, str]]] = {
    "llama.cpp's own type of an overflow": (
        400,
        {"error": {"message": "n", "type": "exceed_context_size_error", "code": 400}},
        (400, "invalid_request", "context_length_exceeded"),
    ),
    "Groq's 413": (
        413,
        {
            "error": {
                "message": "Request too large on tokens per minute (TPM): Limit 6000",
                "code": "rate_limit_exceeded",
            }
        },
        (400, "invalid_request", "rate_limit_exceeded"),
    ),
    "Azure's filter": (
        400,
        {"error": {"message": "x", "code": "content_filter"}},
        (400, "invalid_request", "content_filter"),
    ),
    "DashScope's filter": (
        400,
        {"error": {"message": "Input data may contain inappropriate content.", "code": "data_inspection_failed"}},
        (400, "invalid_request", "content_filter"),
    ),
    "DeepSeek's filter": (
        400,
        {"error": {"message": "Content Exists Risk"}},
        (400, "invalid_request", "content_filter"),
    ),
    "OpenRouter's moderation": (
        403,
        {"error": {"message": "x requires moderation on y. Your input was flagged", "code": 403}},
        (400, "invalid_request", "content_filter"),
    ),
    "OpenAI's unknown model": (
        404,
        {
            "error": {
                "message": "The model `x` does not exist or you do not have access to it.",
                "code": "model_not_found",
            }
        },
        (404, "not_found", "model_not_found"),
    ),
    "vLLM's unknown model": (
        404,
        {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}},
        (404, "not_found", "model_not_found"),
    ),
    "DeepSeek's unknown model": (400, {"error": {"message": "Model Not Exist"}}, (404, "not_found", "model_not_found")),
    "OpenRouter's unknown model": (
        400,
        {"error": {"message": "x is not a valid model ID", "code": 400}},
        (404, "not_found", "model_not_found"),
    ),
    "transformers' unknown model": (
        400,
        {"detail": "Server is pinned to '/models/tiny'; requested 'x'."},
        (404, "not_found", "model_not_found"),
    ),
    "Ollama's unknown model": (
        404,
        {"error": {"message": "model 'x' not found"}},
        (404, "not_found", "model_not_found"),
    ),
    "LiteLLM's unknown model": (
        400,
        {"error": {"message": "Invalid model name passed in model=x. Call `/v1/models`", "code": "400"}},
        (404, "not_found", "model_not_found"),
    ),
    "Azure's unknown deployment": (
        404,
        {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource is not there."}},
        (404, "not_found", "model_not_found"),
    ),
    "another thing that is not there": (404, {"error": {"message": "No such file."}}, (404, "not_found", "not_found")),
    "FastAPI's wrong path": (404, {"detail": "Not Found"}, (502, "server_error", "backend_url")),
    "Go's wrong path": (404, b"404 page not found", (502, "server_error", "backend_url")),
    "nginx's wrong path": (404, b"<html>404</html>", (502, "server_error", "backend_url")),
    "a wrong method": (405, {"detail": "Method Not Allowed"}, (502, "server_error", "backend_url")),
    "a redirect": (308, b"", (502, "server_error", "backend_url")),
    "DeepSeek's empty purse": (
        402,
        {"error": {"message": "Insufficient Balance"}},
        (429, "too_many_requests", "insufficient_quota"),
    ),
    "OpenAI's empty purse": (
        429,
        {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}},
        (429, "too_many_requests", "insufficient_quota"),
    ),
    "Anthropic's empty purse": (
        400,
        {"error": {"message": "Your credit balance is too low to access the API."}},
        (429, "too_many_requests", "insufficient_quota"),
    ),
    "too many requests": (429, {"error": {"message": "slow down"}}, (429, "too_many_requests", "rate_limit_exceeded")),
    "Anthropic's overload": (529, {"error": {"message": "Overloaded"}}, (503, "server_error", "server_is_overloaded")),
    "llama.cpp's start": (
        503,
        {"error": {"message": "Loading model", "code": 503}},
        (503, "server_error", "server_is_overloaded"),
    ),
    "an overload called an error": (
        500,
        {"error": {"message": "model is overloaded"}},
        (503, "server_error", "server_is_overloaded"),
    ),
    "a gateway's patience": (504, b"upstream timed out", (504, "server_error", "timeout")),
    "Cloudflare's patience": (524, b"<html>", (504, "server_error", "timeout")),
    "a crash": (500, b"Internal Server Error", (502, "server_error", "server_error")),
    "a crash with a code": (
        500,
        {"error": {"message": "x", "code": "engine_dead"}},
        (502, "server_error", "engine_dead"),
    ),
    "Groq's unreadable call": (
        400,
        {"error": {"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": "<f"}},
        (502, "model_error", "tool_use_failed"),
    ),
    "llama.cpp on images": (
        500,
        {"error": {"message": "image input is not supported - hint: you may need to provide the mmproj", "code": 500}},
        (400, "invalid_request", "invalid_request"),
    ),
    "llama.cpp on roles": (
        500,
        {
            "error": {
                "message": "Jinja Exception: Conversation roles must alternate",
                "type": "server_error",
                "code": 500,
            }
        },
        (400, "invalid_request", "invalid_request"),
    ),
    "llama.cpp on nulls": (
        500,
        {"error": {"message": "[json.exception.type_error.302] type must be string, but is null", "code": 500}},
        (400, "invalid_request", "invalid_request"),
    ),
    "llama-cpp-python on roles": (
        500,
        {
            "error": {
                "message": "[{'type': 'literal_error', 'loc': ('body', 'messages', 0)}]",
                "type": "internal_server_error",
            }
        },
        (400, "invalid_request", "invalid_request"),
    ),
    "mlx-lm on images": (
        404,
        {"error": "Only 'text' content type is supported."},
        (400, "invalid_request", "invalid_request"),
    ),
    "Baidu's code of an overflow": (
        400,
        {"error": {"code": "prompt_tokens_too_long", "message": "n"}},
        (400, "invalid_request", "context_length_exceeded"),
    ),
    "Azure ML, which wraps the model's own refusal": (
        424,
        {"message": 'Received client error (422) with message "`inputs` tokens + `max_new_tokens` must be <= 4096"'},
        (400, "invalid_request", "context_length_exceeded"),
    ),
    "Volcengine's filter": (
        400,
        {"error": {"code": "SensitiveContentDetected", "message": "may contain sensitive information"}},
        (400, "invalid_request", "content_filter"),
    ),
    "z.ai's plan, used up for hours": (
        429,
        {"error": {"code": "1308", "message": "Usage limit reached for 5 hour."}},
        (429, "too_many_requests", "insufficient_quota"),
    ),
    "Workers AI's day, used up": (
        429,
        {"errors": [{"code": 4006, "message": "you have used up your daily free allocation of 10,000 neurons"}]},
        (429, "too_many_requests", "insufficient_quota"),
    ),
    "mlx-lm on an unknown model": (
        404,
        {"error": "Repository Not Found for url"},
        (404, "not_found", "model_not_found"),
    ),
}


@pytest.mark.parametrize(("status", "body", "expected"), MEANINGS.values(), ids=MEANINGS)
def test_messages_are_classified(status: int, body: Any, expected: tuple[int, str, str]) -> None:
    error = refused(status, body)
    assert (error.status, error.type, error.code) == expected


def test_error_about_our_key_does_not_blame_the_caller() -> None:
    body = {"error": {"message": "Incorrect API key provided: sk-abc***xyz.", "code": "invalid_api_key"}}
    expected = (502, "server_error", "backend_auth", "The backend rejected this server's API key.", None)
    assert seen(refused(401, body)) == expected
    assert seen(refused(400, [{"error": {"code": 400, "message": "API key not valid. Please pass one."}}])) == expected


def test_error_about_the_callers_own_key_is_shown() -> None:
    body = {"error": {"message": "Incorrect API key provided: sk-abc***xyz.", "code": "invalid_api_key"}}
    expected = (401, "invalid_request", "invalid_api_key", "The backend rejected the API key.", None)
    assert seen(refused(401, body, passthrough=True)) == expected


def test_refused_permission_is_shown_to_the_owner_of_the_key() -> None:
    body = {"error": {"message": "Country not supported", "code": "unsupported_country"}}
    assert seen(refused(403, body)) == (502, "server_error", "backend_auth", "Country not supported", None)
    own = (403, "invalid_request", "permission_denied", "Country not supported", None)
    assert seen(refused(403, body, passthrough=True)) == own


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the key s3cret-key is bad", "the key *** is bad"),
        ("s3cret-keys are fine", "s3cret-keys are fine"),
        ("key sk-proj-abc123DEF was given", "key *** was given"),
        ("key sk-ab***********yz was given", "key *** was given"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("gsk_0123456789 and xai-0123456789", "*** and ***"),
        ("AIzaSyA0123456789012345678901", "***"),
        ("Incorrect API key provided: ab****yz. Find", "Incorrect API key provided: *** Find"),
        ("task-oriented sk-learn", "task-oriented sk-learn"),
    ],
)
def test_keys_in_messages_are_redacted(text: str, shown: str) -> None:
    assert scrubbed(text, "s3cret-key") == shown


def test_message_is_shown_without_the_servers_own_code() -> None:
    message = (
        "1 validation error:\n  {'type': 'literal_error'}\n\n  File \"/srv/llama_cpp/app.py\", line 37, in x\n    POST"
    )
    assert scrubbed(message) == "1 validation error:\n  {'type': 'literal_error'}"
    assert scrubbed("It failed.\nTraceback (most recent call last):\n  File ...") == "It failed."
    assert scrubbed('There is no File "a.txt", line 3') == 'There is no File "a.txt", line 3'


def test_message_that_is_long_is_shortened() -> None:
    message = refused(500, {"error": "x" * 100_000}).message
    assert message == "x" * 2000 + "..."


@pytest.mark.parametrize("message", ["{reason}{prompt}", "{prompt}{reason}"])
def test_error_that_quotes_a_long_prompt_is_classified_by_its_ends(message: str) -> None:
    reason, prompt = " The context length is exceeded. Please try again in 7s. ", "word " * 100_000
    refusal = refused(400, {"error": message.format(reason=reason, prompt=prompt)})
    assert refusal.code == "context_length_exceeded"
    limited = refused(429, {"error": message.format(reason=reason, prompt=prompt)})
    assert limited.retry_after == 7
    assert refused(400, {"error": prompt + reason + prompt}).code == "invalid_request"


def test_account_of_the_server_is_redacted() -> None:
    message = "User: arn:aws:iam::123456789012:user/x is not authorized to perform: bedrock:InvokeModel"
    assert seen(refused(403, {"Message": message})) == (
        *(502, "server_error", "backend_auth"),
        *("The backend rejected this server's API key.", None),
    )


def test_retry_after_of_a_refusal_is_passed_on() -> None:
    assert refused(429, b"", {"retry-after": "7"}).retry_after == 7
    assert refused(503, b"", {"retry-after-ms": "1500"}).headers() == {"Retry-After": "2"}
    assert refused(429, {"error": {"message": "Please try again in 1m7.5s."}}).retry_after == 67.5
    assert refused(429, [{"error": {"details": [{"retryDelay": "34s"}]}}]).retry_after == 34
    assert refused(500, b"", {"retry-after": "7"}).retry_after is None


FINE: dict[str, dict[str, Any]] = {
    "a chunk": {"choices": [{"index": 0, "delta": {"content": "x"}}]},
    "a null error": {"choices": [], "error": None},
    "usage": {"choices": [], "usage": {}},
    "Azure's filter results": {"choices": [], "prompt_filter_results": []},
    "MiniMax's success": {"choices": [{"delta": {}}], "base_resp": {"status_code": 0, "status_msg": ""}},
    "something else": {"n": 1},
    "a message that is no complaint": {"message": {"role": "assistant", "content": ""}},
    "odd choices": {"choices": 5},
    "Spark's success": {"code": 0, "message": "Success", "sid": "x", "usage": {"prompt_tokens": 1}},
    "a success": {"code": 200, "msg": "ok"},
    "what Groq says of itself": {"choices": [{"delta": {}}], "x_groq": {"id": "req_1", "error": None}},
}


@pytest.mark.parametrize("chunk", FINE.values(), ids=FINE)
def test_chunk_without_an_error_has_none(chunk: dict[str, Any]) -> None:
    assert error_in_chunk(chunk) is None


IN_STREAMS: dict[str, tuple[dict[str, Any], tuple[int, str, str, str]]] = {
    "OpenAI": (
        {"error": {"message": "x", "type": "server_error", "code": None}},
        (502, "server_error", "server_error", "x"),
    ),
    "vLLM": (
        {"error": {"message": "x", "type": "BadRequestError", "param": None, "code": 400}},
        (400, "invalid_request", "invalid_request", "x"),
    ),
    "SGLang, flat": (
        {"object": "error", "message": "x", "code": 400},
        (400, "invalid_request", "invalid_request", "x"),
    ),
    "OpenRouter, next to choices": (
        {"choices": [{"delta": {"content": ""}, "finish_reason": "error"}], "error": {"code": 502, "message": "x"}},
        (502, "server_error", "server_error", "x"),
    ),
    "OpenRouter, in the choice": (
        {"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 429, "message": "x"}}]},
        (429, "too_many_requests", "rate_limit_exceeded", "x"),
    ),
    "LM Studio": ({"error": "x"}, (502, "server_error", "server_error", "x")),
    "MiniMax": (
        {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "x"}},
        (429, "too_many_requests", "rate_limit_exceeded", "x"),
    ),
    "MiniMax's wrong key": (
        {"base_resp": {"status_code": 1004, "status_msg": "login fail"}},
        (502, "server_error", "backend_auth", "The backend rejected this server's API key."),
    ),
    "FastAPI": ({"detail": "x"}, (502, "server_error", "server_error", "x")),
    "z.ai, under 200": (
        {"code": 500, "msg": "x", "success": False},
        (502, "server_error", "server_error", "x"),
    ),
    "Spark": ({"code": 10012, "message": "x", "sid": "cht"}, (502, "server_error", "10012", "x")),
    "a failure with the code of a success": (
        {"code": 200, "msg": "x", "success": False},
        (502, "server_error", "200", "x"),
    ),
    "Baidu": ({"error_code": 336100, "error_msg": "x", "id": "as-1"}, (502, "server_error", "336100", "x")),
    "TGI": (
        {"error": {"message": "x", "http_status_code": 422}},
        (400, "invalid_request", "invalid_request", "x"),
    ),
    "Groq, in the middle": (
        {"choices": [{"index": 0, "delta": {}, "finish_reason": None}], "x_groq": {"id": "req_1", "error": "x"}},
        (502, "server_error", "server_error", "x"),
    ),
    "Anthropic behind a gateway": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        (503, "server_error", "server_is_overloaded", "Overloaded"),
    ),
    "a rate limit in words": (
        {"error": {"type": "rate_limit_error", "message": "Rate limit reached. Please try again in 2s."}},
        (429, "too_many_requests", "rate_limit_exceeded", "Rate limit reached. Please try again in 2s."),
    ),
    "an overflow in words": (
        {"error": "context length exceeded"},
        (400, "invalid_request", "context_length_exceeded", "context length exceeded"),
    ),
    "an error that says nothing": ({"error": True}, (502, "server_error", "server_error", "The backend failed.")),
}


@pytest.mark.parametrize(("chunk", "expected"), IN_STREAMS.values(), ids=IN_STREAMS)
def test_error_in_a_stream_has_its_http_status(chunk: dict[str, Any], expected: Any) -> None:
    error = error_in_chunk(chunk)
    assert error is not None
    assert (error.status, error.type, error.code, error.message) == expected


def test_retry_after_in_the_words_of_a_stream_is_passed_on() -> None:
    error = error_in_chunk({"error": {"message": "Please try again in 200ms.", "code": 429}})
    assert error and error.retry_after == 0.2


def test_keys_in_a_streams_error_are_redacted() -> None:
    error = error_in_chunk({"error": "the key hunter2 is bad"}, secret="hunter2")
    assert error and error.message == "the key *** is bad"


LEAKS = {
    "key": "hunter-2-long",
    "known form of key": "sk-proj-abcdef123456",
    "part of a word": "bad_hunter-2-long.x",
    "URL": "http://10.0.0.5:8000/v1",
    "IP address": "10.0.0.5",
    "IPv6 address": "fd00::1",
    "host": "gpu-7.internal",
    "host in a path": "errors.gpu-7.internal.oom",
    "sentence": "see the log of worker 3",
}


@pytest.mark.parametrize("text", LEAKS.values(), ids=LEAKS)
@pytest.mark.parametrize("status", [0, 400, 500])
def test_code_and_param_with_a_key_or_an_address_are_not_shown(status: int, text: str) -> None:
    body = {"error": {"message": "bad", "code": text, "param": text, "type": "validation_error"}}
    if status:
        error: BackendError | None = refused(status, body, secret="hunter-2-long", host="gpu-7.internal")
    else:
        error = error_in_chunk(body, secret="hunter-2-long", host="gpu-7.internal")
    assert error is not None
    assert (error.code, error.param) == ("server_error" if status == 500 else "invalid_request", None)


@pytest.mark.parametrize(
    "param", ["messages[0].content", "input.0.type", "tools[1].function.parameters", "temperature", "text.format"]
)
def test_param_that_names_a_field_is_shown(param: str) -> None:
    error = refused(400, {"error": {"message": "bad", "param": param}}, secret="hunter-2-long", host="text")
    assert error.param == param
