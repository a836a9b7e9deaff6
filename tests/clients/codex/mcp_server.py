"""An MCP server with one tool over stdio, offered by Codex as a namespace."""

from __future__ import annotations

import json
import sys
from typing import Any

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            version = params["protocolVersion"]
            return {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "lab", "version": "1"},
            }
        case "tools/list":
            return {"tools": [ADD]}
        case "tools/call":
            total = params["arguments"]["a"] + params["arguments"]["b"]
            return {"content": [{"type": "text", "text": f"The sum is {total}."}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:  # the others are notifications
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
