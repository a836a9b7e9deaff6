"""
The search for tools that the server runs: `{"type": "tool_search"}`, where functions of hosted tools are deferred.

A model with many tools is offered the search alone, and what it finds from then on.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from app.core.request.tool_types import TOOL_SEARCH
from app.core.types.request import Item
from app.tools import Declaration, HostedFunction, Outcome, Report, ToolCall

_FOUND = 5  # tools that are found where the model does not say how many
_MOST = 20


class ToolSearch:
    """The hosted tool `tool_search`."""

    types = ("tool_search",)

    def open(self, declaration: Declaration) -> AbstractAsyncContextManager[ToolSearchSession] | None:
        """Return a session; None where the client runs the search."""
        return None if declaration.tool.get("execution") == "client" else _session()

    async def check(self) -> Mapping[str, str | None]:
        """It needs nothing."""
        return {}

    async def aclose(self) -> None:
        """It has nothing."""


@asynccontextmanager
async def _session() -> AsyncIterator[ToolSearchSession]:
    yield ToolSearchSession()


class ToolSearchSession:
    """The search during one response."""

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """Return the search itself; it is offered only where there is something to be found."""
        return [HostedFunction("tool_search", "tool_search_call", **TOOL_SEARCH, fields={"execution": "server"})]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        """Find deferred functions: they are in a `tool_search_output`, by which they are offered from then on."""
        limit = call.arguments.get("limit")
        most = min(max(limit, 1), _MOST) if isinstance(limit, int) else _FOUND
        found = best(str(call.arguments.get("query") or ""), call.deferred)[:most]
        item = report.add("tool_search_output", call_id=call.call_id, execution="server", tools=_namespaces(found))
        item.close("completed")
        names = ", ".join(function.name for function in found)
        return Outcome(f"Found: {names}" if found else "No tools were found.")


def _namespaces(functions: Sequence[HostedFunction]) -> list[dict[str, object]]:
    """Return functions as declarations of tools, those of each server in a namespace."""
    spaces: dict[str, dict[str, Any]] = {}
    for function in functions:
        name = function.server_label
        space = spaces.setdefault(name, {"type": "namespace", "name": name, "description": "", "tools": []})
        space["tools"].append(
            {
                "type": "function",
                "name": function.name,
                "description": function.description,
                "parameters": dict(function.parameters),
                "strict": function.strict,
                "defer_loading": True,
            }
        )
    return list(spaces.values())


def best(query: str, functions: Sequence[HostedFunction]) -> list[HostedFunction]:
    """Return the functions that a query names words of, the best first: rare words count for more, and names twice."""
    words = [Counter([*_words(one.name), *_words(one.name), *_words(one.description)]) for one in functions]
    common = Counter(word for counts in words for word in counts)
    weights = {word: math.log(1 + len(words) / common[word]) for word in set(_words(query)) if word in common}
    scores = [sum(weight * counts[word] / (counts[word] + 1) for word, weight in weights.items()) for counts in words]
    ranked = sorted(zip(scores, range(len(scores)), strict=True), key=lambda one: (-one[0], one[1]))
    return [functions[index] for score, index in ranked if score > 0]


def _words(text: str) -> list[str]:
    """Return the words of a text or of a name (`get_currentTime`), without the endings that say nothing."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_]+", text)
    return [re.sub(r"(?<=\w\w\w)(ings?|ed|es|s|e)$", "", part.lower()) for part in parts]
