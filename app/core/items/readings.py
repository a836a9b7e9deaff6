"""
Convert items of every type to function calls and outputs, the only types in Chat Completions.

Includes other servers' calls, to show the model its past. A hosted item becomes a call and its result. Items without a
call id stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from app.core.bounded_json import to_json
from app.core.items.arguments import INPUT
from app.core.types import Item, JSONMapping, Part, json_list, json_object, json_objects, json_text, with_fields
from app.core.types.hosted import DEFAULT_NAMESPACE

# Key for notes in an item's stored upstream fields. Notes, all optional: `call_id`, `namespace`, `name` and `arguments`
# as written by the model, `output` as shown to the model, `round`, and the tool's own data in `session`.
NOTES = "hosted"

# Marks outputs from hosted items.
HOSTED: Final = "hosted"

NOT_STORED = "(The results were not stored.)"
INTERRUPTED = "(The call was interrupted and has no result.)"
FAILED = "Error: the call failed."
_WITHOUT_RESULT = {"incomplete": INTERRUPTED, "in_progress": INTERRUPTED, "failed": FAILED}  # by status


class Names(Protocol):
    """The functions' names in the chat request."""

    def name(self, namespace: str | None, name: str) -> str:
        """A function's name, even if it is no longer offered."""
        ...

    def declared_in(self, item: Item) -> list[tuple[str, Mapping[str, object]]]: ...


Read: TypeAlias = Callable[[Item, Names, Mapping[str, object]], list[Item]]


def _call(item: Item, call_id: object, name: str, arguments: object) -> list[Item]:
    if not (isinstance(call_id, str) and call_id):
        return [item]
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    call: Item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}
    return [with_fields(call, {field: value for field in ("id", "namespace", "async") if (value := item.get(field))})]


def _output(item: Item, call_id: object, output: object) -> list[Item]:
    if not (isinstance(call_id, str) and call_id):
        return [item]
    shown = output if isinstance(output, str) else to_json(output)
    return [{"type": "function_call_output", "call_id": call_id, "output": shown}]


# Client-run calls, and their outputs.


def custom_tool_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    return _call(item, item["call_id"], item["name"], {INPUT: item["input"]})


def custom_tool_call_output(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    return [{**item, "type": "function_call_output"}]


def tool_search_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    return _call(item, item.get("call_id"), names.name(DEFAULT_NAMESPACE, "tool_search"), item.get("arguments") or {})


def tool_search_output(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    lines = []
    for name, tool in names.declared_in(item):
        description = json_text(tool.get("description"))
        lines.append(f"- {name}: {description}" if description else f"- {name}")
    shown = "\n".join(["These tools were found. You can call them now:", *lines]) if lines else "No tools were found."
    return _output(item, item.get("call_id"), shown)


def program(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    code = names.name(DEFAULT_NAMESPACE, "programmatic_tool_calling")
    return _call(item, item.get("call_id"), code, {"code": json_text(item.get("code"))})


def multi_agent_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    name = names.name(DEFAULT_NAMESPACE, json_text(item.get("action")) or "multi_agent")
    return _call(item, item.get("call_id"), name, item.get("arguments") or "{}")


def multi_agent_call_output(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    texts = [json_text(part.get("text")) for part in json_objects(item.get("output"))]
    return _output(item, item.get("call_id"), "\n".join(filter(None, texts)))


def call_of(name: str, *fields: str, **defaults: object) -> Read:
    """
    A `Read` for calls to `name`, with the first nonempty field as arguments.

    Default arguments are omitted: the model did not write them.
    """

    def read(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
        arguments: object = next((value for field in fields if (value := item.get(field))), {})
        if isinstance(arguments, dict):
            arguments = {
                field: value for field, value in arguments.items() if field not in defaults or value != defaults[field]
            }
        if isinstance(arguments, list):
            arguments = {"actions": arguments}
        return _call(item, item.get("call_id"), names.name(DEFAULT_NAMESPACE, name), arguments)

    return read


def output_of(*fields: str) -> Read:
    def read(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
        output = next((value for field in fields if (value := item.get(field))), "")
        return _output(item, item.get("call_id") or item.get("id"), output)

    return read


def computer_call_output(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    screenshot, call_id = item.get("output"), item.get("call_id")
    if not isinstance(call_id, str) or not call_id or not isinstance(screenshot, dict):
        return [item]
    image = {"type": "input_image"} | {
        name: screenshot[name] for name in ("image_url", "file_id", "detail") if screenshot.get(name)
    }
    return [{"type": "function_call_output", "call_id": call_id, "output": [image]}]


# Hosted tools' items, with a call and its result.


def _call_and_result(
    item: Item,
    names: Names,
    notes: JSONMapping,
    key: tuple[str, str],
    arguments: object,
    shown: object,
) -> list[Item]:
    """`key` (namespace and name), `arguments` and `shown` apply without notes about them."""
    written = notes.get("arguments", arguments)
    call: Item = {
        "type": "function_call",
        "call_id": notes.get("call_id") or item.get("id") or item["type"],
        "name": names.name(notes.get("namespace", key[0]), notes.get("name", key[1])),
        "arguments": written if isinstance(written, str) else to_json(written),
    }
    if item.get("id"):
        call["id"] = item["id"]
    outputs = (notes.get("output"), shown, _WITHOUT_RESULT.get(str(item.get("status"))), NOT_STORED)
    output = next(output for output in outputs if output is not None)
    return [call, {"type": "function_call_output", "call_id": call["call_id"], "output": output, HOSTED: True}]


def _mcp_key(item: Item) -> tuple[str, str]:
    return json_text(item.get("server_label")) or DEFAULT_NAMESPACE, json_text(item.get("name")) or "tool"


def mcp_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    return _call_and_result(item, names, notes, _mcp_key(item), item.get("arguments") or "{}", mcp_result(item))


def mcp_result(item: Item) -> str | None:
    if isinstance(output := item.get("output"), str):
        return output
    error = item.get("error")
    if isinstance(error, dict):
        texts = [json_text(part.get("text")) for part in json_objects(error.get("content"))]
        message = "\n".join(filter(None, texts)) or json_text(error.get("message"))
        return f"Error: {message}" if message else FAILED
    return f"Error: {error}" if isinstance(error, str) and error else None


def web_search_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    action = json_object(item.get("action"))
    kind = action.get("type")
    if kind in ("open_page", "find_in_page"):
        arguments = {name: action[name] for name in ("url", "pattern") if action.get(name)}
        key = (DEFAULT_NAMESPACE, str(kind))
    else:
        query = action.get("query") or next(iter(json_list(action.get("queries"))), "")
        arguments, key = {"query": query}, (DEFAULT_NAMESPACE, "web_search")
    return _call_and_result(item, names, notes, key, arguments, None)


def file_search_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    key, arguments = (DEFAULT_NAMESPACE, "file_search"), {"queries": item.get("queries") or []}
    results = item.get("results")
    shown = to_json(results) if isinstance(results, list) else None
    return _call_and_result(item, names, notes, key, arguments, shown)


def code_interpreter_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    key, arguments = (DEFAULT_NAMESPACE, "code_interpreter"), {"code": item.get("code") or ""}
    parts: list[Part] = []
    for output in json_objects(item.get("outputs")):
        if isinstance(logs := output.get("logs"), str):
            parts.append({"type": "input_text", "text": logs})
        elif isinstance(url := output.get("url"), str):
            parts.append({"type": "input_image", "image_url": url})
    shown = parts if isinstance(item.get("outputs"), list) else None
    return _call_and_result(item, names, notes, key, arguments, shown)


def image_generation_call(item: Item, names: Names, notes: Mapping[str, object]) -> list[Item]:
    prompt = item.get("revised_prompt")
    key, arguments = (DEFAULT_NAMESPACE, "image_generation"), {"prompt": prompt or ""}
    error = item.get("error")
    if item.get("status") == "failed" or error:
        message = json_text(error.get("message")) if isinstance(error, dict) else json_text(error)
        shown: str | None = f"Error: {message}" if message else "Error: the image could not be created."
    elif item.get("status") in (None, "completed"):
        shown = f"Image created: {prompt}" if prompt else "Image created."
    else:
        shown = None
    return _call_and_result(item, names, notes, key, arguments, shown)


def mcp_approval_request(item: Item, names: Names, notes: JSONMapping) -> list[Item]:
    """
    The call, and a statement that it was not made.

    In the notes, `decided` is the response, if any. A call that was `made` has its own item.
    """
    if notes.get("made"):
        return []
    decided = notes.get("decided")
    shown = "The user has not approved this call yet." if decided is None else _decision(decided, "this call")
    return _call_and_result(item, names, notes, _mcp_key(item), item.get("arguments") or "{}", shown)


def mcp_approval_response(item: Item, names: Names, notes: JSONMapping) -> list[Item]:
    """Omitted unless its notes contain the `request`: then the model learns the decision here."""
    if not (request := notes.get("request")):
        return []
    text = _decision(item, f"the requested call of {json_text(request.get('name')) or 'a tool'}")
    return [{"type": "message", "role": "user", "content": text}]


def _decision(response: JSONMapping, call: str) -> str:
    if response.get("approve") is True:
        return f"The user approved {call}, but it was not run."
    reason = json_text(response.get("reason"))
    return f"The user did not approve {call}: {reason}" if reason else f"The user did not approve {call}."
