"""Tools are found by words of their names and descriptions."""

from __future__ import annotations

import pytest

from app.tools import ToolEntry
from app.tools.search import best

TOOLS = [
    ToolEntry(None, "getCurrentTime", {"description": "Tell the time of a place."}),
    ToolEntry(None, "convert_time", {"description": "Convert a time between zones."}),
    ToolEntry(None, "list_issues", {"description": "List the issues of a repository on GitHub."}),
    ToolEntry("tracker", "create_issue", {}, about="Create and close tickets."),
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("converting times", ["convert_time", "getCurrentTime"]),
        ("current time", ["getCurrentTime", "convert_time"]),
        ("create issues", ["create_issue", "list_issues"]),
        ("tracker", ["create_issue"]),
        ("ticket", ["create_issue"]),
        ("GitHub", ["list_issues"]),
        ("weather", []),
        ("", []),
        ("!?", []),
    ],
)
def test_tool_search_finds_what_a_query_names(query: str, names: list[str]) -> None:
    assert [tool.name for tool in best(query, TOOLS)] == names


def test_tool_search_may_find_nothing() -> None:
    assert best("time", []) == []
