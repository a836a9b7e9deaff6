"""
Translate hosted tools between Anthropic's blocks and response items.

    server_tool_use web_search        web_search_call, action search
    server_tool_use web_fetch         web_search_call, action open_page or find_in_page
    server_tool_use code_execution    code_interpreter_call
    mcp_tool_use                      mcp_call

A second block has the call's result. Blocks keep their item's id, because encrypted reasoning refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.core.bounded_json import to_json
from app.core.items import as_object
from app.core.items.readings import mcp_result
from app.core.types import Item, JSONMapping, JSONObject, json_list, json_object, json_objects, json_text

# `include` values for fields shown in result blocks.
SHOWN_FIELDS = ("web_search_call.results", "code_interpreter_call.outputs")


def hosted_type(tool_type: str) -> str | None:
    return next((hosted for prefix, hosted in _TYPES.items() if tool_type.startswith(prefix)), None)


# `web_fetch` is a function of the web search.
_TYPES = {"web_search_": "web_search", "web_fetch_": "web_search", "code_execution_": "code_interpreter"}


# From blocks to items.


def hosted_item(use: JSONMapping, result: JSONMapping) -> JSONObject | None:
    """`result` is {} if missing. None for an unknown tool."""
    read = _mcp_call if use["type"] == "mcp_tool_use" else _ITEMS.get(use["name"])
    if read is None:
        return None
    content_type = json_text(json_object(result.get("content")).get("type"))
    failed = result.get("is_error") is True or content_type.endswith("_error")
    status = "failed" if failed else "completed" if result else "incomplete"
    return {"id": use["id"], "status": status, **read(use, result)}


def _web_call(use: JSONMapping, result: JSONMapping) -> JSONObject:
    arguments = use["input"]
    url, pattern = json_text(arguments.get("url")), json_text(arguments.get("pattern"))
    if use["name"] == "web_search":
        action = {"type": "search", "query": json_text(arguments.get("query"))}
    elif pattern:
        action = {"type": "find_in_page", "url": url, "pattern": pattern}
    else:
        action = {"type": "open_page", "url": url}
    return {"type": "web_search_call", "action": action}


def _code_call(use: JSONMapping, result: JSONMapping) -> JSONObject:
    arguments, content = use["input"], json_object(result.get("content"))
    logs = "\n".join(filter(None, (json_text(content.get("stdout")), json_text(content.get("stderr")))))
    code = arguments.get("code") or arguments.get("command")  # `command` in `bash_code_execution`
    return {
        "type": "code_interpreter_call",
        "code": json_text(code) or to_json(arguments),
        "container_id": "",
        "outputs": [{"type": "logs", "logs": logs}] if result else None,
    }


def _mcp_call(use: JSONMapping, result: JSONMapping) -> JSONObject:
    content = result.get("content")
    text = (
        content
        if isinstance(content, str)
        else "\n".join(json_text(each.get("text")) for each in json_objects(content))
    )
    item: JSONObject = {
        "type": "mcp_call",
        "server_label": json_text(use.get("server_name")),
        "name": use["name"],
        "arguments": to_json(use["input"]),
    }
    if result.get("is_error") is True:
        return {**item, "error": text or "failed"}
    return {**item, "output": text} if result else item


_ITEMS: dict[str, Callable[[JSONMapping, JSONMapping], JSONObject]] = {
    "web_search": _web_call,
    "web_fetch": _web_call,
    "code_execution": _code_call,
    "bash_code_execution": _code_call,
    "text_editor_code_execution": _code_call,
}


# From items to blocks.


def hosted_blocks(item: Item) -> list[JSONObject]:
    """Call and result blocks; [] for other items."""
    make = _BLOCKS.get(item["type"])
    return make(item) if make else []


def _use(item: Item, name: str, arguments: JSONMapping) -> JSONObject:
    return {"type": "server_tool_use", "id": item["id"], "name": name, "input": arguments}


def _result(item: Item, name: str, content: object) -> JSONObject:
    return {"type": f"{name}_tool_result", "tool_use_id": item["id"], "content": content}


def _failure(name: str) -> JSONObject:
    return {"type": f"{name}_tool_result_error", "error_code": "unavailable"}


def _web_blocks(item: Item) -> list[JSONObject]:
    action, failed = json_object(item.get("action")), item.get("status") != "completed"
    if action.get("type") in ("open_page", "find_in_page"):
        url = json_text(action.get("url"))
        arguments: JSONObject = {name: action[name] for name in ("url", "pattern") if name in action}
        # Only the model sees the page's text.
        source = {"type": "text", "media_type": "text/plain", "data": ""}
        document = {"type": "document", "source": source, "title": None, "citations": None}
        fetched = {"type": "web_fetch_result", "url": url, "content": document, "retrieved_at": None}
        content = _failure("web_fetch") if failed else fetched
        return [_use(item, "web_fetch", arguments), _result(item, "web_fetch", content)]
    found = [_found(result) for result in json_objects(item.get("results"))]
    query = {"query": json_text(action.get("query"))}
    return [
        _use(item, "web_search", query),
        _result(item, "web_search", _failure("web_search") if failed else found),
    ]


def _found(result: JSONMapping) -> JSONObject:
    return {
        "type": "web_search_result",
        "url": json_text(result.get("url")),
        "title": json_text(result.get("title")),
        "encrypted_content": "",
        "page_age": None,
    }


def _code_blocks(item: Item) -> list[JSONObject]:
    logs = "".join(json_text(output.get("logs")) for output in json_objects(item.get("outputs")))
    failed = item.get("status") != "completed"
    content: JSONObject = {
        "type": "code_execution_result",
        "stdout": logs,
        "stderr": "",
        "return_code": 1 if failed else 0,
        "content": [],
    }
    code = {"code": json_text(item.get("code"))}
    return [_use(item, "code_execution", code), _result(item, "code_execution", content)]


_UNAPPROVED = (
    "Error: This call requires an approval, which clients of the Messages API cannot give, so it was not made."
)


def _mcp_blocks(item: Item) -> list[JSONObject]:
    """A request for approval becomes a failed call: the API has no approvals."""
    text = _UNAPPROVED if item["type"] == "mcp_approval_request" else mcp_result(item)
    use = {
        "type": "mcp_tool_use",
        "id": item["id"],
        "name": json_text(item.get("name")),
        "server_name": json_text(item.get("server_label")),
        "input": as_object(json_text(item.get("arguments"))),
    }
    content: list[JSONObject] = [{"type": "text", "text": text}] if text else []
    failed = not isinstance(item.get("output"), str)
    result = {"type": "mcp_tool_result", "tool_use_id": item["id"], "is_error": failed, "content": content}
    return [use, result]


_BLOCKS: Mapping[str, Callable[[Item], list[JSONObject]]] = {
    "web_search_call": _web_blocks,
    "code_interpreter_call": _code_blocks,
    "mcp_call": _mcp_blocks,
    "mcp_approval_request": _mcp_blocks,
}


def server_tool_usage(output: list[Item]) -> JSONObject | None:
    """Count searches and fetches; None without any."""
    names = [block["name"] for item in output for block in hosted_blocks(item)[:1]]
    searches, fetches = names.count("web_search"), names.count("web_fetch")
    return {"web_search_requests": searches, "web_fetch_requests": fetches} if searches or fetches else None


# Declarations.


def web_tool(tools: Sequence[JSONMapping]) -> JSONObject:
    """Declare web search for a request's `web_search_*` and `web_fetch_*` tools."""
    declared: JSONObject = {"type": "web_search"}
    filters = {
        name: domains
        for tool in tools
        for name in ("allowed_domains", "blocked_domains")
        if (domains := tool.get(name))
    }
    if filters:
        declared["filters"] = filters
    if location := next((place for tool in tools if (place := tool.get("user_location"))), None):
        declared["user_location"] = location
    return declared


def mcp_tool(server: JSONMapping, toolset: JSONMapping) -> JSONObject:
    """Declare an MCP server with the tools selected by a toolset ({} if missing)."""
    declared: JSONObject = {
        "type": "mcp",
        "server_label": server["name"],
        "server_url": server["url"],
        "require_approval": "never",
    }
    if token := server.get("authorization_token"):
        declared["authorization"] = token
    configured = json_object(server.get("tool_configuration"))
    if isinstance(allowed := configured.get("allowed_tools"), list):
        declared["allowed_tools"] = allowed
    if json_object(toolset.get("default_config")).get("enabled") is False:
        configs = json_object(toolset.get("configs"))
        declared["allowed_tools"] = [name for name, config in configs.items() if json_object(config).get("enabled")]
    return declared


def named_types(body: JSONMapping) -> set[str]:
    types = {hosted_type(json_text(tool.get("type"))) for tool in json_objects(body.get("tools"))}
    named = {found for found in types if found}
    return named | {"mcp"} if json_list(body.get("mcp_servers")) else named
