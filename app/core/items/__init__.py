"""The table of item types, `ITEM_TYPES`. All other tables of item types are derived from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from app.core.bounded_json import loads, to_json
from app.core.items import readings
from app.core.items.arguments import INPUT, ArgumentsReader, InputReader, ObjectReader
from app.core.items.readings import Read
from app.core.types import Item, JSONMapping

# `call`: made by the model, run by the client. `output`: a call's result, sent by the client. `hosted`: a call with its
# result, run by a server. `context`: everything else.
Role: TypeAlias = Literal["message", "reasoning", "call", "output", "hosted", "context"]
Details: TypeAlias = Callable[[Item], Iterable[tuple[str, dict[str, object]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemType:
    type: str
    prefix: str = "item"  # for ids
    role: Role = "context"
    has_notes: bool = False  # whether the server stores notes with it
    adds_tools: Literal["declared", "search"] | None = None  # whether its `tools` are declarations or search results
    pinned: bool = False  # whether it stays when the conversation is truncated
    encrypted: Literal["reasoning", "compaction"] | None = None  # the kind of its `encrypted_content`
    read: Read | None = None  # conversion to function calls and outputs; None: unnecessary, or hidden from models
    silent: bool = False  # whether to omit it without a warning if it cannot be converted
    awaits_client: bool = False  # whether it ends the response because the client must answer

    # Calls in `EventBuilder`.
    call_id: bool = True
    has_status: bool = True
    field: str | None = None  # for the model's arguments
    empty: Mapping[str, object] = dataclasses.field(default_factory=dict)  # other item fields when added
    added_events: tuple[str, ...] = ()  # after `output_item.added`
    delta: str | None = None  # event with a piece of the arguments
    done: str | None = None  # event with all arguments
    done_fields: tuple[str, ...] = ()  # other item fields in the `done` event
    details: Details = lambda item: ()  # further events about a complete call, with their fields
    # Fields implied by such an event, for recovery from stored events.
    restored: Mapping[str, Callable[[Item, JSONMapping], dict[str, object]]] = dataclasses.field(default_factory=dict)
    argument: str | None = None  # the function argument for the field; None: all arguments, as JSON
    value: Callable[[str], object] = lambda written: written  # the field's value, from the model's text
    added_when_complete: bool = False

    # Hosted runs.
    running: tuple[str, ...] = ()  # events when the run starts
    # For tools to emit, by short names.
    progress: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ended: Mapping[str, str] = dataclasses.field(default_factory=dict)  # final event, by status
    interrupted: str = "incomplete"  # status if the response ends during the run
    final: Callable[[str], dict[str, object]] = lambda written: {}  # default final fields
    error: Callable[[str], dict[str, object]] = lambda message: {}
    # Fields that require a value in `include`, with that value.
    included: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own_output: Callable[[Item], str | None] = lambda item: None  # the item's own output for the model

    @property
    def hosted(self) -> bool:
        return self.role == "hosted"

    def reader(self) -> ArgumentsReader:
        return InputReader(self.argument) if self.argument else ObjectReader()


def as_object(written: str) -> dict[str, object]:
    """Parse arguments; {} for invalid JSON, for example from a truncated call."""
    try:
        value = loads(written)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {"query": value} if isinstance(value, str) else {}


def _as_action(**defaults: object) -> Callable[[str], dict[str, object]]:
    """A parser that replaces missing or mistyped fields by these defaults."""

    def read(written: str) -> dict[str, object]:
        action = as_object(written)
        for name, default in defaults.items():
            value = action.get(name)
            if isinstance(default, list) and isinstance(value, str):
                action[name] = [value]
            elif not isinstance(value, type(default)):
                action[name] = default
        return action

    return read


def _as_exec(written: str) -> dict[str, object]:
    action = {**_as_action(command=[], env={})(written), "type": "exec"}
    if isinstance(command := as_object(written).get("command"), str):
        action["command"] = ["bash", "-lc", command]
    return action


def as_json_object(written: str) -> str:
    """
    Wrap arguments other than a JSON object in a field `_raw`.

    Backends that parse arguments for their chat template would answer 400 or 500 in later turns.
    """
    if not written or written.isspace():
        return "{}"
    try:
        value = loads(written)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return written
    if written.strip() == "null":
        return "{}"
    return to_json({"_raw": written})


def _shell_commands(item: Item) -> Iterator[tuple[str, dict[str, object]]]:
    for index, command in enumerate(item["action"]["commands"]):
        yield "response.shell_call_command.added", {"command_index": index, "command": ""}
        yield "response.shell_call_command.delta", {"command_index": index, "delta": command}
        yield "response.shell_call_command.done", {"command_index": index, "command": command}


def _patch_diff(item: Item) -> Iterator[tuple[str, dict[str, object]]]:
    if diff := item["operation"].get("diff"):
        yield "response.apply_patch_call_operation_diff.delta", {"item_id": item["id"], "delta": diff}
        yield "response.apply_patch_call_operation_diff.done", {"item_id": item["id"], "diff": diff}


_client_call = partial(ItemType, role="call", awaits_client=True)
_hosted_call = partial(ItemType, role="hosted", call_id=False)

FUNCTION_CALL = _client_call(
    type="function_call",
    prefix="fc",
    field="arguments",
    delta="response.function_call_arguments.delta",
    done="response.function_call_arguments.done",
    done_fields=("name",),
)
CUSTOM_TOOL_CALL = _client_call(
    type="custom_tool_call",
    prefix="ctc",
    read=readings.custom_tool_call,
    field="input",
    delta="response.custom_tool_call_input.delta",
    done="response.custom_tool_call_input.done",
    argument=INPUT,
)
TOOL_SEARCH_CALL = _client_call(
    type="tool_search_call",
    prefix="tsc",
    read=readings.tool_search_call,
    silent=True,  # without a call id, another server ran it
    field="arguments",
    value=as_object,
)
LOCAL_SHELL_CALL = _client_call(
    type="local_shell_call",
    prefix="lsh",
    read=readings.call_of("local_shell", "action", type="exec", env={}),
    field="action",
    value=_as_exec,
)
SHELL_CALL = _client_call(
    type="shell_call",
    prefix="sh",
    read=readings.call_of("shell", "action"),
    field="action",
    value=_as_action(commands=[]),
    details=_shell_commands,
    restored={
        "response.shell_call_command.done": lambda item, event: {
            "action": {**item["action"], "commands": [*item["action"]["commands"], event["command"]]}
        }
    },
    own_output=lambda item: "",  # if this server ran it, the output is a separate item
)
APPLY_PATCH_CALL = _client_call(
    type="apply_patch_call",
    prefix="apc",
    read=readings.call_of("apply_patch", "operation"),
    field="operation",
    value=_as_action(type="update_file", path="", diff=""),
    details=_patch_diff,
)
COMPUTER_CALL = _client_call(
    type="computer_call",
    prefix="cu",
    read=readings.call_of("computer", "actions", "action"),
    empty={"pending_safety_checks": []},
    field="actions",
    value=lambda written: _as_action(actions=[])(written)["actions"],
)
# The older tool has a single action per call.
COMPUTER_ACTION = dataclasses.replace(COMPUTER_CALL, field="action", value=_as_action(type="screenshot"))
MCP_APPROVAL_REQUEST = ItemType(
    type="mcp_approval_request",
    prefix="mcpr",
    awaits_client=True,
    read=readings.mcp_approval_request,
    call_id=False,
    has_status=False,
    field="arguments",
    value=as_json_object,
    added_when_complete=True,
)

_ROWS = (
    ItemType(type="message", prefix="msg", role="message"),
    ItemType(type="reasoning", prefix="rs", role="reasoning", encrypted="reasoning"),
    FUNCTION_CALL,
    ItemType(type="function_call_output", prefix="fco", role="output"),
    CUSTOM_TOOL_CALL,
    ItemType(type="custom_tool_call_output", prefix="ctco", role="output", read=readings.custom_tool_call_output),
    TOOL_SEARCH_CALL,
    ItemType(
        type="tool_search_output",
        prefix="tso",
        role="output",
        adds_tools="search",
        read=readings.tool_search_output,
        silent=True,
    ),
    ItemType(type="additional_tools", prefix="at", adds_tools="declared", pinned=True, silent=True),
    ItemType(type="compaction", prefix="cmp", encrypted="compaction", pinned=True),
    ItemType(type="agent_message", prefix="amsg"),
    LOCAL_SHELL_CALL,
    ItemType(type="local_shell_call_output", prefix="lsho", role="output", read=readings.output_of("output")),
    SHELL_CALL,
    ItemType(
        type="shell_call_output",
        prefix="sho",
        role="output",
        read=readings.output_of("output"),
        progress={
            "delta": "response.shell_call_output_content.delta",
            "done": "response.shell_call_output_content.done",
        },
        restored={
            "response.shell_call_output_content.done": lambda item, event: {
                "output": [*item["output"], *event["output"]]
            }
        },
        empty={"output": []},
        call_id=False,
    ),
    APPLY_PATCH_CALL,
    ItemType(type="apply_patch_call_output", prefix="apco", role="output", read=readings.output_of("output", "status")),
    COMPUTER_CALL,
    ItemType(type="computer_call_output", prefix="cuo", role="output", read=readings.computer_call_output),
    # From tools on OpenAI's servers, in conversations that began there.
    ItemType(type="program", prefix="prog", role="call", read=readings.program),
    ItemType(type="program_output", prefix="progo", role="output", read=readings.output_of("result")),
    ItemType(type="multi_agent_call", prefix="mac", role="call", read=readings.multi_agent_call),
    ItemType(type="multi_agent_call_output", prefix="maco", role="output", read=readings.multi_agent_call_output),
    ItemType(
        type="mcp_list_tools",
        prefix="mcpl",
        has_notes=True,
        pinned=True,
        read=lambda item, names, notes: [],
        call_id=False,
        has_status=False,
        empty={"tools": []},
        added_events=("response.mcp_list_tools.in_progress",),
        ended={"completed": "response.mcp_list_tools.completed", "failed": "response.mcp_list_tools.failed"},
        interrupted="failed",
        error=lambda message: {"error": message},
    ),
    _hosted_call(
        type="mcp_call",
        prefix="mcp",
        read=readings.mcp_call,
        field="arguments",
        empty={"output": None, "error": None, "approval_request_id": None},
        added_events=("response.mcp_call.in_progress",),
        delta="response.mcp_call_arguments.delta",
        done="response.mcp_call_arguments.done",
        value=as_json_object,
        ended={"completed": "response.mcp_call.completed", "failed": "response.mcp_call.failed"},
        error=lambda message: {
            "output": None,
            "error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": message}]},
        },
        own_output=readings.mcp_result,
    ),
    MCP_APPROVAL_REQUEST,
    ItemType(type="mcp_approval_response", prefix="mcpa", read=readings.mcp_approval_response),
    _hosted_call(
        type="web_search_call",
        prefix="ws",
        read=readings.web_search_call,
        added_events=("response.web_search_call.in_progress",),
        running=("response.web_search_call.searching",),
        ended={"completed": "response.web_search_call.completed"},
        final=lambda written: {"action": {"type": "search", "query": str(as_object(written).get("query", ""))}},
        included={"results": "web_search_call.results"},
    ),
    _hosted_call(
        type="file_search_call",
        prefix="fs",
        read=readings.file_search_call,
        empty={"queries": [], "results": None},
        added_events=("response.file_search_call.in_progress",),
        running=("response.file_search_call.searching",),
        ended={"completed": "response.file_search_call.completed"},
        included={"results": "file_search_call.results"},
    ),
    _hosted_call(
        type="code_interpreter_call",
        prefix="ci",
        read=readings.code_interpreter_call,
        field="code",
        empty={"container_id": "", "outputs": None},
        added_events=("response.code_interpreter_call.in_progress",),
        delta="response.code_interpreter_call_code.delta",
        done="response.code_interpreter_call_code.done",
        argument="code",
        running=("response.code_interpreter_call.interpreting",),
        ended={"completed": "response.code_interpreter_call.completed"},
        included={"outputs": "code_interpreter_call.outputs"},
    ),
    _hosted_call(
        type="image_generation_call",
        prefix="ig",
        read=readings.image_generation_call,
        empty={"result": None},
        added_events=("response.image_generation_call.in_progress",),
        running=("response.image_generation_call.generating",),
        progress={"partial_image": "response.image_generation_call.partial_image"},
        ended={"completed": "response.image_generation_call.completed"},
        interrupted="failed",
        error=lambda message: {
            "error": {"type": "image_generation_error", "code": "tool_error", "message": message, "param": None}
        },
    ),
)

ITEM_TYPES: dict[str, ItemType] = {row.type: row for row in _ROWS}

OUTPUTS = frozenset(row.type for row in _ROWS if row.role == "output")


def type_of(item: JSONMapping) -> ItemType | None:
    return ITEM_TYPES.get(item["type"])


def is_by_user(item: Item) -> bool:
    return item["type"] == "message" and item["role"] == "user"


def waits_for_client(item: Mapping[str, object]) -> bool:
    row = type_of(item)
    if row is None or not row.awaits_client or item.get("async") is True or item.get("execution") == "server":
        return False
    environment = item.get("environment")
    return not (isinstance(environment, Mapping) and environment.get("type") == "container_reference")


def id_prefix(item_type: str) -> str:
    return row.prefix if (row := ITEM_TYPES.get(item_type)) else "item"
