"""
Hosted tools: tools that the server runs itself during a response.

A tool is created once, from its settings table `[tools.NAME]`. If a request declares one of the tool's `types`, the
tool opens a *session* for the response. The session lists the functions that the model may call, and runs the calls.
Sessions do not handle streams: the loop (`app.responses`) calls the model, adds items, runs calls concurrently, emits
the events defined by the item type table (`app.core.items`), and stores tool outputs.

    class Dice:                                        # [tools.dice]  tool = "my_package.dice:Dice"
        types = ("dice",)                              # {"tools": [{"type": "dice", "sides": 6}]} in a request

        @classmethod
        def from_settings(cls, table, host):           # raises ValueError for an invalid table
            return cls()

        def open(self, declaration):                   # a session per declaration and response
            return nullcontext(DiceSession(declaration.tool.get("sides", 6)))

        async def check(self):                         # for `antiphon check`
            return {}

        async def aclose(self): ...

    class DiceSession:
        def __init__(self, sides): self.sides = sides

        async def functions(self, items, report):
            return [HostedFunction("roll", "mcp_call", "Roll the dice.", namespace="dice")]

        async def run(self, call, report):
            number = str(random.randint(1, self.sides))
            return Outcome(number, {"output": number})

The loop guarantees:

- Calls in a session run concurrently unless the request contains `parallel_tool_calls: false`.
- A call runs at most once. Its arguments are a JSON object.
- A call that needs approval runs only after the caller has approved it.
- If the response is cancelled or times out, or its client disconnects, `run` is cancelled (`asyncio.CancelledError`),
  and then the session is closed.
- An `mcp_call` gets its `name` and `server_label` from the function and its namespace.

A tool guarantees:

- `run` returns `Outcome.failed` for errors that the model should see (a refusal, a timeout, a 500). Exceptions are
  logged as bugs, and the item fails.
- Outcomes, functions, items and errors contain no secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

from app.core.access import UNRESTRICTED, KeyAccess
from app.core.types import JSONObject, Usage
from app.core.types.frozen import frozen
from app.core.types.hosted import DeferredTool as DeferredTool
from app.core.types.hosted import HostedFunction as HostedFunction
from app.core.types.request import Item, Part
from app.core.usage.tool_usage import Counts
from app.errors import InvalidRequest, Warnings

# By table name: `[tools.NAME]`. A table with another name has the key `tool`, an import path `package.module:Class`.
# Each class has `from_settings(table, host)`, which does no I/O and raises ValueError for an invalid table.
TOOLS: dict[str, str] = {
    "code_interpreter": "app.tools.code_interpreter.tool:CodeInterpreter",
    "demo": "app.tools.demo:DemoTool",
    "file_search": "app.tools.files.tool:FileSearch",
    "image_generation": "app.tools.image_generation:ImageGenerationTool",
    "mcp": "app.tools.mcp:MCPTool",
    "web_search": "app.tools.web_search:WebSearchTool",
}

# For these types, an unknown server name is an error. Other unknown types are dropped.
NAMED_TYPES = frozenset({"mcp"})

OutcomeStatus: TypeAlias = Literal["completed", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits for hosted tools in a response."""

    max_rounds: int = 16  # rounds with hosted tools, before a last round without them
    parallel: int = 4  # concurrent calls
    max_result_chars: int = 60_000  # per call, shown to the model
    max_call_seconds: float = 300  # per call


@dataclass(frozen=True, slots=True)
class ToolHost:
    """The parts of the server available to tools."""

    backends: Mapping[str, Any] = field(default_factory=dict)  # `BackendSettings` by name
    directory: Path = Path()  # base directory for relative paths in the settings
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # environment variables, for settings such as `api_key_env`
    max_result_chars: int = 60_000  # per call, shown to the model; the loop truncates longer results
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # all tools' tables, by name
    store_url: str = ""  # the response store
    workers_directory: Path | None = None  # shared by this server's workers only; None with a single worker


@frozen
class Declaration:
    """An entry in a request's `tools` for a hosted tool, with its caller."""

    tool: Mapping[str, object]  # as echoed, without secrets
    secrets: Mapping[str, object]  # as sent: with `authorization`, `headers`, and the full `server_url`
    param_path: str  # JSON path in the request, such as `tools[0]`, for the `param` of errors
    owner: str  # hash of the caller's key; owns all stored objects
    response_id: str
    chain: str  # the conversation's chain key: the last part in its ids
    include: frozenset[str] = frozenset()  # from the request
    # Names for the caller's key in the settings: its table name, if any, and `sha256:` with its SHA-256.
    key_names: frozenset[str] = frozenset()
    access: KeyAccess = UNRESTRICTED  # rights of the caller's key
    deadline: float | None = None  # latest end of the response, in event loop time
    warnings: Warnings = field(default_factory=Warnings)  # for the response, about ignored parts of the declaration

    def require(self, *rights: str) -> None:
        """Raise `PermissionDenied` unless the caller's key includes any listed right. The error contains the first."""
        self.access.check_tool(*rights, param=f"{self.param_path}.type")

    def require_model(self, model: str, field: str = "type") -> None:
        """Raise `PermissionDenied` unless the caller's key may use this model, selected by `field`."""
        self.access.check_model(model, param=f"{self.param_path}.{field}")


def is_label(label: object) -> TypeGuard[str]:
    return isinstance(label, str) and 0 < len(label) <= 128


def unknown_server(declaration: Declaration) -> InvalidRequest:
    """The error for an undeclared MCP server, or a missing label."""
    tool, param_path = declaration.tool, declaration.param_path
    if not is_label(tool.get("server_label")):
        message = "Invalid 'server_label': must have 1 to 128 characters."
        return InvalidRequest(message, param=f"{param_path}.server_label")
    if declaration.secrets.get("server_url"):
        message = "This server only calls MCP servers declared by its operator."
        return InvalidRequest(message, param=f"{param_path}.server_url")
    field = "server_label" if tool.get("connector_id") is None else "connector_id"
    return InvalidRequest(f"MCP server '{tool.get(field)}' not found on this server.", param=f"{param_path}.{field}")


@frozen
class ToolCall:
    id: str  # item id
    function: HostedFunction
    arguments: JSONObject
    items: Sequence[Item]  # the conversation, oldest first, with this response's finished items
    approval_request_id: str | None = None  # the approved request, if the function needs approval
    call_id: str = ""  # the backend's call id
    deferred: Sequence[DeferredTool] = ()  # searched by a tool search: the client's and all sessions' tools


@dataclass(frozen=True, slots=True)
class Source:
    """
    A source that the answer's text can cite.

    `annotation` excludes the position in the text: `{"type": "url_citation", "url", "title"}` or `{"type":
    "file_citation", "file_id", "filename"}`. `mark` is the text that the model writes to cite the source, such as
    `【3】`. A source without a mark is cited by links to its `url`.
    """

    annotation: Mapping[str, object]
    mark: str | None = None


@frozen
class Outcome:
    """
    A call's result.

    - `output` is shown to the model: text, or input parts (`{"type": "input_text", "text"}`, `{"type": "input_image",
      "image_url"}`). It is stored with the turn unless the item itself contains it.
    - `fields` are added to the finished item, such as `{"action": {...}}` in a `web_search_call`. Fields that callers
      only see with `include` (`results` in a `file_search_call`) are always set; the loop removes them.
    - `usage` is added to the response's `tool_usage`: `{"web_search": {"num_requests": 1}}`.
    - `begun` is False for a failed call that was never sent: its approval can be reused.
    """

    output: str | list[Part]
    fields: Mapping[str, object] = field(default_factory=dict)
    status: OutcomeStatus = "completed"
    sources: Sequence[Source] = ()
    usage: Counts = field(default_factory=dict)
    begun: bool = True

    @classmethod
    def failed(cls, message: str, fields: Mapping[str, object] | None = None, *, begun: bool = True) -> Outcome:
        """
        Return a failed call's outcome, with a message for the model and the caller.

        Without `fields`, the item gets its type's error fields with the message.
        """
        return cls(message, fields or {}, "failed", begun=begun)


class ReportedItem(Protocol):
    """An item that a tool has added to the output and will close."""

    @property
    def id(self) -> str: ...

    def event(self, name: str, **fields: object) -> None:
        """Emit a `progress` event listed by the item's type, by its short name."""
        ...

    def set_private_data(self, **data: object) -> None:
        """Store private data with the item. `Report.private_data` returns it in later turns; callers do not see it."""
        ...

    def close(self, status: OutcomeStatus = "completed", **fields: object) -> None:
        """End the item with these fields. Emits the event for the status, if any, and `output_item.done`."""
        ...


class Account(Protocol):
    """
    An API key's account, charged for tools' backend requests like for the key's own requests.

    Before a request, a tool checks the model (`Declaration.require_model`) and the limits. Afterwards it charges the
    usage reported by the backend immediately, even if the call fails later.
    """

    async def check_limits(self) -> None:
        """Raise `TooManyRequests` if the key's tokens for this minute, or its budget, are used up."""
        ...

    def charge_request(self, model: str, backend: str, usage: Usage) -> None:
        """Charge a backend request to the key's limits and budget, at the model's price."""
        ...


class Report(Account, Protocol):
    """
    Reports a session's progress, and charges its requests to the caller's key.

    Reports after the end of the response are ignored.
    """

    def event(self, name: str, **fields: object) -> None:
        """Emit a `progress` event for the running call's item, such as `partial_image`; not while listing."""
        ...

    def add(self, item_type: str, **fields: object) -> ReportedItem:
        """Add and open an item with another type, such as `mcp_list_tools` or `shell_call_output`."""
        ...

    def private_data(self, item: Item) -> Mapping[str, object]:
        """Return the private data stored with an item in the conversation; {} for other servers' items."""
        ...

    def has_stored_image(self, item: Item) -> bool:
        """Return whether an earlier turn's `image_generation_call` has a stored `result` that can be loaded."""
        ...

    async def stored_image(self, item: Item) -> str | None:
        """Return that `result` in base64, or None if deleted. Raises `StoreUnavailable`."""
        ...

    def warn(self, message: str) -> None:
        """Add a warning for the caller: a sentence about ignored or adapted parts."""
        ...


class ToolSession(Protocol):
    """A tool during a response."""

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """
        Return the functions that the model may call. Called once, before the model. May do I/O, such as listing tools.

        `items` is the conversation so far: tools listed in it need not be listed again. If the tool is unreachable, it
        adds an item with the error, or warns, and returns no functions; the response continues without it.
        """
        ...

    async def run(self, call: ToolCall, report: Report) -> Outcome: ...


@runtime_checkable
class DeclaringTool(Protocol):
    """A hosted tool that can be declared without caller-specific ids. The studio and `GET /antiphon/about` offer it."""

    def declarations(self, key_names: Collection[str]) -> Sequence[Mapping[str, object]]:
        """Return declarations that a caller may use, without secrets; see `Declaration.key_names`."""
        ...


@runtime_checkable
class LinkedTool(Protocol):
    """A hosted tool that uses another tool, if configured."""

    def link(self, tools: Mapping[str, HostedTool]) -> None:
        """Find the other tool by table name. Called once, before any other use."""
        ...


@runtime_checkable
class StartingTool(Protocol):
    """A hosted tool with background tasks."""

    def start(self, account_of: Callable[[str], Account]) -> None:
        """
        Start the tasks in the server's event loop; `aclose` ends them.

        `account_of` returns the account for a key name, to charge work done later for a caller.
        """
        ...


@runtime_checkable
class ResourceTool(Protocol):
    """A hosted tool with API resources. `RESOURCES` in `app.assembly.routes` lists their routes."""

    @property
    def resources(self) -> Mapping[str, object]:
        """Objects for the routes, by resource name, such as `files`."""
        ...


class InputFiles(Protocol):
    """Uploaded files referenced by item parts."""

    async def resolve(self, items: Sequence[Item], new: Sequence[Item], owner: str, warnings: Warnings) -> list[Item]:
        """Replace file ids with file contents; raises `InvalidRequest` for unknown files in `new` items."""
        ...


@runtime_checkable
class ToolWithRights(Protocol):
    """
    A hosted tool with its own rights, such as `mcp:lab` for an MCP server.

    Its `open` checks the caller's right with `Declaration.require`. For other tools, the right is the type or the table
    name, and the loop checks it.
    """

    def rights(self, declaration: Mapping[str, object]) -> Sequence[str]:
        """Return the rights for one of the tool's `declarations`. Each is sufficient."""
        ...


@runtime_checkable
class FileTool(Protocol):
    """A hosted tool with uploaded files that requests can reference."""

    @property
    def input_files(self) -> InputFiles: ...


@runtime_checkable
class DetailedTool(Protocol):
    """A hosted tool that describes its working parts."""

    def details(self) -> Mapping[str, str]:
        """Return readable descriptions from `check`, by part name."""
        ...


@runtime_checkable
class PreparingTool(Protocol):
    """A hosted tool with checks at server start beyond `from_settings`."""

    async def prepare(self) -> Sequence[str] | None:
        """
        Raise ValueError if the tool cannot work with its settings; not if something is unreachable.

        Returns warnings about parts that cannot work.
        """
        ...


class HostedTool(Protocol):
    """A tool from the settings, shared by all responses."""

    @property
    def types(self) -> Collection[str]:
        """Declaration types that the tool serves, such as `web_search` and `web_search_preview`."""
        ...

    def open(self, declaration: Declaration) -> AbstractAsyncContextManager[ToolSession] | None:
        """
        Return the session for a declaration; None if it is not for this tool or caller.

        Does no I/O: called before the response starts. Raises `InvalidRequest` with the field for an invalid
        declaration. Entering the context may do I/O, and must not raise if something is unreachable.

        The context may be entered and exited in different tasks, so an anyio cancel scope or an MCP client needs its
        own task.
        """
        ...

    async def check(self) -> Mapping[str, str | None]:
        """Check the tool's dependencies. Returns an error, or None if it works, by dependency name."""
        ...

    async def aclose(self) -> None: ...
