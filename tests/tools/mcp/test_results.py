"""MCP results, as the model and the caller receive them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from app.core.redaction import Redactor
from app.tools import RESULT_TRUNCATED
from app.tools.mcp.server import ServerAddress
from app.tools.mcp.session import MAX_IMAGE_CHARS, MAX_IMAGES, failed_outcome, outcome_of, without_secrets
from app.tools.mcp.settings import MCPServer

PLAIN = Redactor()
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ({"content": [text("one"), text("two")]}, "one\ntwo"),
        ({"content": []}, ""),
        ({"content": [], "structuredContent": {"a": "ü"}}, '{"a": "ü"}'),
        ({"content": [text("said")], "structuredContent": {"a": 1}}, "said"),
        ({"content": [{"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}]}, "[audio: audio/wav]"),
        (
            {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a", "description": "An a."}]},
            "[a](file:///a): An a.",
        ),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "A."}}]}, "file:///a:\nA."),
        (
            {"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": "aGk=", "mimeType": "a/b"}}]},
            "[resource: x:y a/b]",
        ),
        ({"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": "aGk="}}]}, "[resource: x:y]"),
    ],
)
def test_result_is_given_in_words(result: dict[str, Any], output: str) -> None:
    outcome = outcome_of(result, PLAIN, 1000)
    assert (outcome.output, outcome.status) == (output, "completed")
    assert outcome.fields == {"output": output, "error": None}


@pytest.mark.parametrize(
    "block", [IMAGE, {"type": "resource", "resource": {"uri": "x:y", "blob": "aGk=", "mimeType": "image/png"}}]
)
def test_result_images_are_shown_to_the_model(block: dict[str, Any]) -> None:
    outcome = outcome_of({"content": [text("Here:"), block]}, PLAIN, 1000)
    assert isinstance(outcome.output, list)
    assert outcome.output[1] == {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    assert outcome.output[0]["text"] == outcome.fields["output"]
    assert outcome.fields["output"].startswith("Here:\n[")


@pytest.mark.parametrize(
    ("sizes", "shown", "words"),
    [
        ([10] * MAX_IMAGES, MAX_IMAGES, None),
        ([10] * (MAX_IMAGES + 3), MAX_IMAGES, "[3 images in this result were omitted"),
        ([MAX_IMAGE_CHARS, 10], 1, "[1 images in this result were omitted"),
        ([MAX_IMAGE_CHARS // 2, MAX_IMAGE_CHARS, 10], 2, "[1 images in this result were omitted"),
    ],
)
def test_result_images_beyond_the_bounds_are_not_shown(sizes: list[int], shown: int, words: str | None) -> None:
    outcome = outcome_of({"content": [{**IMAGE, "data": "a" * size} for size in sizes]}, PLAIN, 10_000)
    assert isinstance(outcome.output, list) and len(outcome.output) == 1 + shown
    assert outcome.output[0]["text"] == outcome.fields["output"]
    assert ("were omitted" in str(outcome.fields["output"])) is bool(words) and (words or "") in str(
        outcome.fields["output"]
    )


def test_result_of_a_tool_that_fails_says_why() -> None:
    outcome = outcome_of({"content": [text("No such city.")], "isError": True}, PLAIN, 1000)
    assert (outcome.status, outcome.output) == ("failed", "Error: No such city.")
    assert outcome.fields == {
        "output": None,
        "error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "No such city."}]},
    }


def test_result_that_is_too_long_is_cut_and_says_so() -> None:
    outcome = outcome_of({"content": [text("word " * 1000)]}, PLAIN, 100)
    assert isinstance(outcome.output, str)
    assert len(outcome.output) == 100 and outcome.output.endswith(RESULT_TRUNCATED)


def test_result_secrets_are_redacted() -> None:
    url = "https://user:password@mcp.example.com/hooks/0123456789abcdef0123/mcp?key=querykey"
    server = MCPServer(url=url, env={"KEY": SecretStr("from the environment")})
    redactor = ServerAddress(server, headers={"Authorization": "Bearer token-of-mine", "X-Key": 'with"quote'}).redactor
    secrets = [
        "password",
        "0123456789abcdef0123",
        "querykey",
        "token-of-mine",
        'with"quote',
        'with\\"quote',
        "from the environment",
    ]
    for secret in secrets:
        for result in (
            {"content": [text(f"It was {secret}.")]},
            {"content": [], "structuredContent": {secret: [secret]}},
        ):
            assert secret not in str(outcome_of(result, redactor, 1000))
            assert secret not in str(outcome_of({**result, "isError": True}, redactor, 1000))
        error = {"type": "mcp_protocol_error", "code": 1, "message": f"Bad {secret}"}
        assert secret not in str(failed_outcome(error, redactor))
        assert secret not in str(without_secrets([{secret: secret}], redactor))
    assert redactor("The host mcp.example.com, path /mcp") == "The host mcp.example.com, path /mcp"
