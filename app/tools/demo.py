"""
A tool for demonstrations and tests. Uses every feature of hosted tools; needs no network.

Declared as an MCP server: `{"type": "mcp", "server_label": "demo"}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from app.core.types.request import Item
from app.tools import (
    Declaration,
    HostedFunction,
    HostedTool,
    Outcome,
    Report,
    SettingsTable,
    Source,
    ToolCall,
    ToolHost,
    ToolSession,
)

DEMO_LABEL = "demo"
_RIGHTS = (f"mcp:{DEMO_LABEL}", "mcp", "demo")

# One pixel.
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PAGE = {"title": "A demo page", "url": "https://demo.example/page"}


class DemoSettings(SettingsTable):
    longest_wait: float = Field(10, ge=0)
    """Maximum duration of the function `wait`, in seconds."""
    approve: list[str] = ["send"]
    """Functions that need approval."""


class DemoTool(HostedTool):
    types = ("mcp",)

    def __init__(self, settings: DemoSettings) -> None:
        self._settings = settings

    @classmethod
    def from_settings(cls, table: Mapping[str, object], host: ToolHost) -> DemoTool:
        return cls(DemoSettings.model_validate(dict(table)))

    def open(self, declaration: Declaration) -> DemoSession | None:
        tool = declaration.tool
        if tool.get("server_label") != DEMO_LABEL or tool.get("connector_id") or tool.get("server_url"):
            return None
        declaration.require(*_RIGHTS)
        allowed = tool.get("allowed_tools")
        return DemoSession(self._settings, allowed if isinstance(allowed, list) else None)

    def declarations(self, key_names: Collection[str]) -> list[dict[str, object]]:
        return [{"type": "mcp", "server_label": DEMO_LABEL}]

    def rights(self, declaration: Mapping[str, object]) -> tuple[str, ...]:
        return _RIGHTS

    async def check(self) -> Mapping[str, str | None]:
        return {DEMO_LABEL: None}


def _schema(**properties: str) -> dict[str, object]:
    members = {name: {"type": json_type} for name, json_type in properties.items()}
    return {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}


class DemoSession(ToolSession):
    def __init__(self, settings: DemoSettings, allowed: Sequence[object] | None = None) -> None:
        self._settings = settings
        self._allowed = allowed

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        labelled = [
            replace(function, needs_approval=function.name in self._settings.approve)
            for function in _FUNCTIONS
            if function.namespace and (self._allowed is None or function.name in self._allowed)
        ]
        if not any(item["type"] == "mcp_list_tools" and item.get("server_label") == DEMO_LABEL for item in items):
            listed = report.add("mcp_list_tools", server_label=DEMO_LABEL)
            tools = [
                {"name": function.name, "description": function.description, "input_schema": function.parameters}
                for function in labelled
            ]
            listed.close(tools=tools)
        return [*labelled, *(function for function in _FUNCTIONS if not function.namespace)]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        outcome: Outcome = await getattr(self, call.function.name)(call, report)
        return outcome

    async def echo(self, call: ToolCall, report: Report) -> Outcome:
        return _text_outcome(str(call.arguments.get("text", "")))

    async def add(self, call: ToolCall, report: Report) -> Outcome:
        a, b = call.arguments.get("a"), call.arguments.get("b")
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            return Outcome.failed("`a` and `b` must be numbers.")
        return _text_outcome(str(a + b))

    async def wait(self, call: ToolCall, report: Report) -> Outcome:
        seconds = call.arguments.get("seconds")
        if not isinstance(seconds, int | float):
            return Outcome.failed("`seconds` must be a number.")
        await asyncio.sleep(min(max(0.0, seconds), self._settings.longest_wait))
        return _text_outcome("Done.")

    async def fail(self, call: ToolCall, report: Report) -> Outcome:
        return Outcome.failed(str(call.arguments.get("message") or "The call failed."))

    async def send(self, call: ToolCall, report: Report) -> Outcome:
        return _text_outcome(f"Sent: {call.arguments.get('text', '')}")

    async def web_search(self, call: ToolCall, report: Report) -> Outcome:
        query = str(call.arguments.get("query", ""))
        action = {
            "type": "search",
            "query": query,
            "queries": [query],
            "sources": [{"type": "url", "url": PAGE["url"]}],
        }
        return Outcome(
            f"1. [{PAGE['title']}]({PAGE['url']}): everything about {query}.",
            {"action": action},
            sources=[Source({"type": "url_citation", **PAGE})],
            usage={"web_search": {"num_requests": 1}},
        )

    async def file_search(self, call: ToolCall, report: Report) -> Outcome:
        queries = [str(query) for query in call.arguments.get("queries") or ()]
        result = {"file_id": "file_demo", "filename": "demo.txt", "score": 1.0, "text": "A demo.", "attributes": {}}
        return Outcome("【1】 demo.txt: A demo.", {"queries": queries, "results": [result]})

    async def code_interpreter(self, call: ToolCall, report: Report) -> Outcome:
        code = str(call.arguments.get("code", ""))
        return Outcome(f"{len(code)} characters", {"outputs": [{"type": "logs", "logs": f"{len(code)} characters"}]})

    async def image_generation(self, call: ToolCall, report: Report) -> Outcome:
        report.event("partial_image", partial_image_index=0, partial_image_b64=IMAGE, output_format="png")
        prompt = str(call.arguments.get("prompt", ""))
        return Outcome(f"Image created: {prompt}", {"result": IMAGE, "revised_prompt": prompt})


def _text_outcome(text: str) -> Outcome:
    return Outcome(text, {"output": text})


def _labelled(name: str, description: str, **properties: str) -> HostedFunction:
    return HostedFunction(name, "mcp_call", description, _schema(**properties), namespace=DEMO_LABEL)


# Each is a method of `DemoSession`.
_QUERIES = {"type": "array", "items": {"type": "string"}}
_FUNCTIONS = (
    _labelled("echo", "Say something again.", text="string"),
    _labelled("add", "Add two numbers.", a="number", b="number"),
    _labelled("wait", "Wait for some seconds.", seconds="number"),
    _labelled("fail", "Fail, with a message.", message="string"),
    _labelled("send", "Send a text to somebody.", text="string"),
    HostedFunction("web_search", "web_search_call", "Search the web.", _schema(query="string")),
    HostedFunction(
        "file_search",
        "file_search_call",
        "Search in files.",
        {"type": "object", "properties": {"queries": _QUERIES}, "required": ["queries"]},
    ),
    HostedFunction(
        "code_interpreter",
        "code_interpreter_call",
        "Run code.",
        _schema(code="string"),
        fields={"container_id": "cntr_demo"},
    ),
    HostedFunction("image_generation", "image_generation_call", "Draw an image.", _schema(prompt="string")),
)
