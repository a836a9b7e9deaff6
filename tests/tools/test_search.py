"""Tools are found by words of their names and descriptions."""

from __future__ import annotations

import pytest

from app.tools import HostedFunction
from app.tools.search import best

FUNCTIONS = [
    HostedFunction("getCurrentTime", "mcp_call", "Tell the time of a place."),
    HostedFunction("convert_time", "mcp_call", "Convert a time between zones."),
    HostedFunction("list_issues", "mcp_call", "List the issues of a repository on GitHub."),
    HostedFunction("create_issue", "mcp_call", "Create an issue in a repository."),
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("converting times", ["convert_time", "getCurrentTime"]),
        ("current time", ["getCurrentTime", "convert_time"]),
        ("create issues", ["create_issue", "list_issues"]),
        ("GitHub", ["list_issues"]),
        ("weather", []),
        ("", []),
        ("!?", []),
    ],
)
def test_tool_search_finds_what_a_query_names(query: str, names: list[str]) -> None:
    assert [function.name for function in best(query, FUNCTIONS)] == names


def test_tool_search_may_find_nothing() -> None:
    assert best("time", []) == []
