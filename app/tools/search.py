"""
The hosted tool `tool_search`: `{"type": "tool_search"}`.

The model is first offered only the search, then the tools found, client or hosted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from app.core.request.tool_types import TOOL_SEARCH
from app.core.types import JSONObject
from app.core.types.request import Item
from app.tools import Declaration, HostedFunction, HostedTool, Outcome, Report, ToolCall, ToolEntry, ToolSession

_DEFAULT_LIMIT = 5
_MAX_LIMIT = 20


class ToolSearch(HostedTool):
    """Needs no right: it only reads the request's declarations."""

    types = ("tool_search",)

    def rights(self, declaration: Mapping[str, object]) -> Sequence[str]:
        return ()

    def open(self, declaration: Declaration) -> ToolSearchSession | None:
        return None if declaration.tool.get("execution") == "client" else ToolSearchSession()


class ToolSearchSession(ToolSession):
    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """Only offered if deferred tools exist."""
        return [HostedFunction("tool_search", "tool_search_call", **TOOL_SEARCH, fields={"execution": "server"})]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        """The loop offers the tools in the resulting `tool_search_output`."""
        argument = call.arguments.get("limit")
        limit = min(max(argument, 1), _MAX_LIMIT) if isinstance(argument, int) else _DEFAULT_LIMIT
        results = best(str(call.arguments.get("query") or ""), call.deferred)[:limit]
        item = report.add("tool_search_output", call_id=call.call_id, execution="server", tools=_declarations(results))
        item.close("completed")
        names = ", ".join(tool.name for tool in results)
        return Outcome(f"Found: {names}" if results else "No tools were found.")


def _declarations(tools: Sequence[ToolEntry]) -> list[JSONObject]:
    declarations: list[JSONObject] = []
    namespaces: dict[str, JSONObject] = {}
    for tool in tools:
        if tool.namespace is None:
            declarations.append({**tool.tool})
        elif namespace := namespaces.get(tool.namespace):
            namespace["tools"].append({**tool.tool})
        else:
            namespace = {"type": "namespace", "name": tool.namespace, "description": tool.about}
            namespaces[tool.namespace] = {**namespace, "tools": [{**tool.tool}]}
            declarations.append(namespaces[tool.namespace])
    return declarations


def best(query: str, tools: Sequence[ToolEntry]) -> list[ToolEntry]:
    """
    Tools that share words with a query, best first.

    Rare words weigh more, and words in a tool's name count twice.
    """
    words = [
        Counter([*_words(tool.name) * 2, *_words(tool.description), *_words(f"{tool.namespace or ''} {tool.about}")])
        for tool in tools
    ]
    common = Counter(word for counts in words for word in counts)
    weights = {word: math.log(1 + len(words) / common[word]) for word in set(_words(query)) if word in common}
    scores = [sum(weight * counts[word] / (counts[word] + 1) for word, weight in weights.items()) for counts in words]
    ranked = sorted(zip(scores, range(len(scores)), strict=True), key=lambda one: (-one[0], one[1]))
    return [tools[index] for score, index in ranked if score > 0]


def _words(text: str) -> list[str]:
    """Split a text or name (`get_currentTime`) into stems."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_]+", text)
    return [re.sub(r"(?<=\w\w\w)(ings?|ed|es|s|e)$", "", part.lower()) for part in parts]
