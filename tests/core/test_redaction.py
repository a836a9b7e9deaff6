"""Secrets: tool credentials, who can retrieve them, and redaction in text."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.redaction import Redactor, ToolSecrets, origin_of, without_credentials, without_password
from app.core.types.request import CreateResponse

MCP = {
    "type": "mcp",
    "server_label": "lab",
    "server_url": "https://user:CANARY@lab.example:8443/CANARY/mcp?key=CANARY#CANARY",
    "authorization": "CANARY",
    "headers": {"X-Key": "CANARY"},
    "allowed_tools": ["add"],
    "require_approval": "never",
}
POLICY = {
    "type": "allowlist",
    "allowed_domains": ["api.example"],
    "domain_secrets": [{"domain": "api.example", "name": "KEY", "value": "CANARY"}],
}
SHELL = {"type": "shell", "environment": {"type": "container_auto", "network_policy": POLICY}}
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto", "network_policy": POLICY}}
VENDOR = {"type": "vendor:search", "options": [{"api_key": "CANARY", "depth": 2}]}
NAMESPACE = {"type": "namespace", "name": "labs", "tools": [MCP]}


def request(**fields: Any) -> CreateResponse:
    return CreateResponse.model_validate({"model": "m", "input": "Hi", **fields})


@pytest.mark.parametrize("tool", [MCP, SHELL, INTERPRETER, VENDOR, NAMESPACE], ids=lambda tool: tool["type"])
def test_tool_without_its_credentials_gets_them_back_to_run(tool: dict[str, Any]) -> None:
    parsed_request = request(tools=[tool], input=[{"type": "additional_tools", "role": "developer", "tools": [tool]}])
    for shown in (
        parsed_request.tools,
        parsed_request.items(),
        parsed_request.model_dump(),
        repr(parsed_request),
        repr(parsed_request.tool_secrets),
    ):
        assert "CANARY" not in str(shown)
    (redacted,) = parsed_request.tools
    inner, sent = (redacted["tools"][0], tool["tools"][0]) if "tools" in tool else (redacted, tool)
    assert parsed_request.tool_secrets.restore(inner) == sent
    assert parsed_request.model_copy(update={"store": False}).tool_secrets.restore(inner) == sent


def test_tool_fields_other_than_credentials_stay() -> None:
    assert request(tools=[MCP]).tools == [
        {
            "type": "mcp",
            "server_label": "lab",
            "server_url": "https://lab.example:8443",
            "allowed_tools": ["add"],
            "require_approval": "never",
        }
    ]
    (shell,) = request(tools=[SHELL]).tools
    assert shell["environment"]["network_policy"] == {
        **POLICY,
        "domain_secrets": [{"domain": "api.example", "name": "KEY"}],
    }


def test_parameters_may_have_the_names_of_credentials() -> None:
    schema = {"type": "object", "properties": {"headers": {"type": "object"}, "password": {"type": "string"}}}
    function = {"type": "function", "name": "fetch", "parameters": schema}
    assert request(tools=[function]).tools == [function]


def test_secrets_of_one_server_are_not_sent_to_another() -> None:
    parsed_request = request(tools=[MCP])
    (redacted,) = parsed_request.tools
    for other in (
        {**redacted, "server_url": "https://other.example"},
        {**redacted, "server_label": "other"},
        {**redacted, "type": "vendor:mcp"},
    ):
        assert parsed_request.tool_secrets.restore(other) == other
    assert request().tool_secrets.restore(redacted) == redacted


def test_value_that_is_no_tool_is_unchanged() -> None:
    odd: list[Any] = [None, 1, "CANARY", [], {}]
    assert ToolSecrets().redact(odd) == odd
    assert ToolSecrets().redact_items(odd) == odd
    assert without_credentials({"domain_secrets": "CANARY", "headers": None, "server_url": 7}) == {"domain_secrets": []}


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://lab.example/a?b#c", "https://lab.example"),
        ("http://u:p@lab.example:80/a", "http://lab.example:80"),
        ("https://[::1]:9/a", "https://[::1]:9"),
        ("lab.example/a", None),
        ("https://lab.example:port/a", None),
        ("https://[::1/a", None),
        ("stdio:secret", None),
        ("", None),
        (None, None),
        ({"url": "https://lab.example"}, None),
    ],
)
def test_url_is_reduced_to_its_origin(url: Any, origin: str | None) -> None:
    assert origin_of(url) == origin


def test_error_does_not_quote_the_request() -> None:
    with pytest.raises(ValueError, match="temperature") as error:
        request(tools=[MCP], temperature="CANARY")
    assert "CANARY" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Authorization: Bearer abc.DEF-123", "Authorization: Bearer ***"),
        ("{'authorization': 'Bearer abc'}", "{'authorization': 'Bearer ***'}"),
        ('{"message": "\\"Bearer abc\\""}', '{"message": "\\"Bearer ***\\""}'),
        ("key sk-proj-Abc_123 is wrong", "key *** is wrong"),
        ("gsk_0123456789abcdefghij, hf_0123456789abcdefghij", "***, ***"),
        ("AIza0123456789abcdefghijk", "***"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln", "***"),
        ("req_0123456789abcdefghij in hf_space", "req_0123456789abcdefghij in hf_space"),
        ("api_key=hush&model=x", "api_key=***"),
        ('{"api-key": "hush"}', '{"api-key": "***"}'),
        ("redis://user:hush@localhost:6379/0", "redis://user:***@localhost:6379/0"),
        ("redis://:hush@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("a caller-key-1 here", "a *** here"),
        ("http://localhost:8080/v1 and max_tokens: 5", "http://localhost:8080/v1 and max_tokens: 5"),
        ("the bearer", "the bearer"),
        ("hf-internal-testing/tiny-random and xai-grok-4", "hf-internal-testing/tiny-random and xai-grok-4"),
    ],
)
def test_text_that_looks_like_a_secret_is_redacted(text: str, redacted: str) -> None:
    assert Redactor(["caller-key-1", "x"])(text) == redacted


PREFIXES = ("sk", "pk", "rk", "csk", "gsk", "xai", "hf", "fw", "r8", "nvapi", "pplx", "tgp")
KEYS = [
    *(f"{prefix}-0123456789ab" for prefix in PREFIXES),
    *(f"{prefix}_0123456789ab" for prefix in PREFIXES if prefix != "sk"),
    "AIza0123456789abcdefghijk",
    "eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln",
]
NAMED_KEYS = ["Bearer {}", "Basic {}", "api-key: {}", "API_KEY={}", "API key provided: {}", "x://:{}@y"]


@pytest.mark.parametrize("key", [*KEYS, *(named.format("hush") for named in NAMED_KEYS)])
def test_key_alone_in_a_text_is_redacted(key: str) -> None:
    spellings = {key} if key.startswith(("AIza", "eyJ")) else {key, key.lower(), key.upper()}
    for spelling in spellings:
        for text in (spelling, f"time info line of={spelling} and more", f'{{"of": "{spelling}", "at": "é"}}'):
            redacted = Redactor()(text)
            assert "***" in redacted
            assert not [part for part in ("0123456789ab", "hush", "c2ln") if part in redacted.lower()]


def test_key_in_letters_of_another_case_is_redacted() -> None:
    for spelling in ("\u017fk-0123456789ab", "s\u212a-0123456789ab", "BA\u017f\u0130C hush"):
        assert "***" in Redactor()(spelling)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hush@localhost:6379/0", "redis://***@localhost:6379/0"),
        ("https://user:hush@example.com/v1", "https://***@example.com/v1"),
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("memory://", "memory://"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
    ],
)
def test_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
