from __future__ import annotations

import pytest

from app.api.client_apis import client_path, rename_error, renamed_warnings
from app.errors import InvalidRequest

CLIENT_PATHS = {
    "input[1]": "messages[2]",
    "input[1].output": "messages[2].content",
    "text.format": "response_format.json_schema",
    "max_output_tokens": "max_tokens",
}


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("input[1].content[0].text", "messages[2].content[0].text"),
        ("input[1].output[0].text", "messages[2].content[0].text"),
        ("input[1]", "messages[2]"),
        ("input[10].content", "input[10].content"),
        ("text.format.schema", "response_format.json_schema.schema"),
        ("text.formats", "text.formats"),
        ("max_output_tokens", "max_tokens"),
        ("", ""),
    ],
)
def test_client_path_is_the_longest_matching_prefix(field: str, path: str) -> None:
    assert client_path(field, CLIENT_PATHS) == path


def test_error_names_the_clients_field_in_its_message_too() -> None:
    error = InvalidRequest("Invalid 'input[1].content': it is odd.", param="input[1].content")
    renamed = rename_error(error, CLIENT_PATHS)
    assert (renamed.param, renamed.message) == ("messages[2].content", "Invalid 'messages[2].content': it is odd.")


def test_warnings_name_the_clients_fields_and_nothing_else() -> None:
    warnings = ["The parameter 'max_output_tokens' was left out.", "The backend's limit isn't kept."]
    assert [*renamed_warnings(warnings, CLIENT_PATHS)] == ["The parameter 'max_tokens' was left out.", warnings[1]]
