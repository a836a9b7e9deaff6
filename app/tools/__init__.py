"""
Hosted tools: tools that the server runs itself while it makes a response.

A tool is created once, from its table `[tools.NAME]` of the settings. For each response whose request declares one of
its `types` it opens a *session*, which lists the functions that the model may call, and runs the calls. A session knows
nothing of streams: the loop (`app.responses`) calls the model, adds the items, runs the calls concurrently, emits the
events that the table of item types (`app.core.items`) has for them, and stores what was shown to the model.

    class Dice:                                        # [tools.dice]  tool = "my_package.dice:Dice"
        types = ("dice",)                              # {"tools": [{"type": "dice", "sides": 6}]} in a request

        @classmethod
        def from_settings(cls, table, host):           # raises ValueError for a table that is wrong
            return cls()

        def open(self, declaration):                   # one session per declaration and response
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

The loop guarantees: calls of a session run concurrently unless the request has `parallel_tool_calls: false`; a call is
run at most once; its arguments are a JSON object; a call that needs approval is run only after the caller has approved
it; if the response is cancelled or times out, or its client disconnects, `run` is cancelled (`asyncio.CancelledError`)
and then the session is closed.

An `mcp_call` gets its `name` and `server_label` from the function and its namespace.

A tool guarantees: `run` returns `Outcome.failed` for errors that the model should see (a refusal, a timeout, a 500).
Exceptions are logged as bugs, and the item ends as failed. Outcomes, functions, items and errors contain no secrets.
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

# By the name of the table `[tools.NAME]`. A table of another name has an import path `package.module:Class` as its key
# `tool`. Each class has `from_settings(table, host)`: it does no I/O, and raises ValueError for a table that is wrong.
TOOLS: dict[str, str] = {
    "code_interpreter": "app.tools.code_interpreter.tool:CodeInterpreter",
    "demo": "app.tools.demo:DemoTool",
    "file_search": "app.tools.files.tool:FileSearch",
    "image_generation": "app.tools.image_generation:ImageGenerationTool",
    "mcp": "app.tools.mcp:MCPTool",
    "web_search": "app.tools.web_search:WebSearchTool",
}

# Types whose declarations name a server. An unknown name is an error; other unknown types are dropped.
NAMED_TYPES = frozenset({"mcp"})

OutcomeStatus: TypeAlias = Literal["completed", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits of hosted tools for one response."""

    max_rounds: int = 16  # rounds of the model with hosted tools, before a last one without them
    parallel: int = 4  # concurrent calls
    max_result_chars: int = 60_000  # shown to the model for one call
    max_call_seconds: float = 300  # for one call


@dataclass(frozen=True, slots=True)
class ToolHost:
    """The parts of the server that a tool may use."""

    backends: Mapping[str, Any] = field(default_factory=dict)  # the settings of the backends by name: `BackendSettings`
    directory: Path = Path()  # base of relative paths in the settings
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # environment variables, for settings such as `api_key_env`
    max_result_chars: int = 60_000  # shown to the model for one call; the loop cuts longer results
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # of all tools, by name
    store_url: str = ""  # the store of responses
    workers_directory: Path | None = None  # private to the workers of this server; None where there is only one


@frozen
class Declaration:
    """One entry of a request's `tools` for a hosted tool, and the caller who declared it."""

    tool: Mapping[str, object]  # as echoed, without secrets
    secrets: Mapping[str, object]  # the declaration as sent: with `authorization`, `headers`, all of `server_url`
    place: str  # path in the request, such as `tools[0]`, for the `param` of errors
    owner: str  # the hash of the caller's key, which owns everything stored
    response_id: str
    chain: str  # the key of the conversation's chain: the last part of its ids
    include: frozenset[str] = frozenset()  # of the request
    # What the settings may call the caller's key: the name of its table, if it has one, and `sha256:` with its SHA-256.
    key_names: frozenset[str] = frozenset()
    access: KeyAccess = UNRESTRICTED  # the rights of the caller's key
    deadline: float | None = None  # end of the response at the latest, in the time of the event loop
    warnings: Warnings = field(default_factory=Warnings)  # of the response, about what is left out of the declaration

    def require(self, *rights: str) -> None:
        """Raise `PermissionDenied` unless the caller's key has one of these rights; the error shows the first."""
        self.access.check_tool(*rights, param=f"{self.place}.type")

    def require_model(self, model: str, field: str = "type") -> None:
        """Raise `PermissionDenied` unless the caller's key may use this model, which `field` has led to."""
        self.access.check_model(model, param=f"{self.place}.{field}")


def is_label(label: object) -> TypeGuard[str]:
    """Return whether the `server_label` of a declaration is a valid one."""
    return isinstance(label, str) and 0 < len(label) <= 128


def unknown_server(declaration: Declaration) -> InvalidRequest:
    """Return the error for an MCP server that the operator has not declared, or for one without a label."""
    tool, place = declaration.tool, declaration.place
    if not is_label(tool.get("server_label")):
        message = "Invalid 'server_label': must have 1 to 128 characters."
        return InvalidRequest(message, param=f"{place}.server_label")
    if declaration.secrets.get("server_url"):
        message = "This server calls only MCP servers that its operator has declared."
        return InvalidRequest(message, param=f"{place}.server_url")
    field = "server_label" if tool.get("connector_id") is None else "connector_id"
    return InvalidRequest(f"MCP server '{tool.get(field)}' not found on this server.", param=f"{place}.{field}")


@frozen
class ToolCall:
    """A call made by the model."""

    id: str  # of its item
    function: HostedFunction
    arguments: JSONObject
    items: Sequence[Item]  # the conversation, oldest first, with the finished items of this response
    approval_request_id: str | None = None  # the approved request, if the function needs approval
    call_id: str = ""  # the backend's id of the call
    deferred: Sequence[DeferredTool] = ()  # what a tool search may find: of the client, and of all sessions


@dataclass(frozen=True, slots=True)
class Source:
    """
    A source that the text of an answer may cite.

    `annotation` is the annotation without its position in the text: `{"type": "url_citation", "url", "title"}` or
    `{"type": "file_citation", "file_id", "filename"}`. `mark` is the text that the model is instructed to write to cite
    it, such as `【3】`; a source without a mark is cited by links to its `url`.
    """

    annotation: Mapping[str, object]
    mark: str | None = None


@frozen
class Outcome:
    """
    The result of a call.

    `output` is shown to the model: text, or parts of input content (`{"type": "input_text", "text"}`,
    `{"type": "input_image", "image_url"}`). It is stored with the turn unless the item itself contains it. `fields` are
    those of the finished item, such as `{"action": {...}}` of a `web_search_call`. Fields that callers see only with a
    value of `include` (`results` of a `file_search_call`) are always set; the loop removes them. `usage` is added up in
    the response's `tool_usage`: `{"web_search": {"num_requests": 1}}`. `begun` is False for a failed call that was
    not even sent: its approval may be used again.
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
        Return the outcome of a failed call, with a message for the model and the caller.

        Without `fields` the item gets the error fields of its type for the message.
        """
        return cls(message, fields or {}, "failed", begun=begun)


class ReportedItem(Protocol):
    """An item that a tool has added to the output and will close."""

    @property
    def id(self) -> str: ...

    def event(self, name: str, **fields: object) -> None:
        """Emit one of the `progress` events that the item's type lists, by its short name."""
        ...

    def note(self, **notes: object) -> None:
        """Store notes with the item that callers do not see: `Report.notes` returns them in later turns."""
        ...

    def close(self, status: OutcomeStatus = "completed", **fields: object) -> None:
        """End the item with these fields: emits the event of the status, if any, and `output_item.done`."""
        ...


class Account(Protocol):
    """
    The account of an API key, to which requests of tools to backends are charged as those of the key itself are.

    A tool checks the model (`Declaration.require_model`) and the limits before a request, and charges what the backend
    reports as soon as it is known, whatever becomes of the call.
    """

    async def check_limits(self) -> None:
        """Raise `TooManyRequests` while the key has used up its tokens of this minute, or its budget."""
        ...

    def charge_request(self, model: str, backend: str, usage: Usage) -> None:
        """Charge one request to a backend: to the key's limits and budget, by the price of the model."""
        ...


class Report(Account, Protocol):
    """
    Reports the progress of a session, and charges its requests to the caller's key.

    What it reports after the end of the response is ignored.
    """

    def event(self, name: str, **fields: object) -> None:
        """Emit a `progress` event of the running call's item, such as `partial_image`; not while listing."""
        ...

    def add(self, item_type: str, **fields: object) -> ReportedItem:
        """Add an item of another type to the output, such as `mcp_list_tools` or `shell_call_output`, and open it."""
        ...

    def notes(self, item: Item) -> Mapping[str, object]:
        """Return the notes stored with an item of the conversation; {} for items of other servers."""
        ...

    def has_stored_image(self, item: Item) -> bool:
        """Tell whether the `result` of an `image_generation_call` of an earlier turn can be loaded: it is not in it."""
        ...

    async def stored_image(self, item: Item) -> str | None:
        """Return that `result`, in base64; None if there is none any more. Raises `StoreUnavailable`."""
        ...

    def warn(self, message: str) -> None:
        """Add a warning for the caller: one sentence about what was left out or adapted."""
        ...


class ToolSession(Protocol):
    """A tool during one response."""

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """
        Return the functions that the model may call; called once, before the model. May do I/O, such as listing tools.

        `items` is the conversation so far: a list of tools in it need not be requested again. A tool that cannot be
        reached adds an item with the error, or warns, and returns no functions: the response continues without it.
        """
        ...

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        """Run a call, once."""
        ...


@runtime_checkable
class DeclaringTool(Protocol):
    """A hosted tool that a caller can declare without ids of its own: the studio and `GET /antiphon/about` offer it."""

    def declarations(self, key_names: Collection[str]) -> Sequence[Mapping[str, object]]:
        """Return declarations that a caller may use in requests, without secrets; see `Declaration.key_names`."""
        ...


@runtime_checkable
class LinkedTool(Protocol):
    """A hosted tool that uses another one where there is one."""

    def link(self, tools: Mapping[str, HostedTool]) -> None:
        """Look for it among all tools, which are by the names of their tables; called once, before any other use."""
        ...


@runtime_checkable
class StartingTool(Protocol):
    """A hosted tool with tasks of its own."""

    def start(self, account_of: Callable[[str], Account]) -> None:
        """
        Start them, in the event loop of the server; `aclose` ends them.

        `account_of` returns the account of the key with a name: of the caller for whom something is done later.
        """
        ...


@runtime_checkable
class ResourceTool(Protocol):
    """A hosted tool with objects that the API shows: `RESOURCES` in `app.assembly.routes` names their routes."""

    @property
    def resources(self) -> Mapping[str, object]:
        """What the routes need, by the name of the resource, such as `files`."""
        ...


class InputFiles(Protocol):
    """The uploaded files that parts of items refer to."""

    async def resolve(self, items: Sequence[Item], new: Sequence[Item], owner: str, warnings: Warnings) -> list[Item]:
        """Return `items` with file contents for ids; raises `InvalidRequest` for unknown files of `new` items."""
        ...


@runtime_checkable
class ToolWithRights(Protocol):
    """
    A hosted tool with rights of its own, such as `mcp:lab` for one server of MCP.

    Its `open` chooses what a declaration stands for, and so checks the caller's right to that: `Declaration.require`.
    The right to any other tool is its type, or the name of its table, and is checked by the loop.
    """

    def rights(self, declaration: Mapping[str, object]) -> Sequence[str]:
        """Return the rights that allow one of its `declarations`; any of them will do."""
        ...


@runtime_checkable
class FileTool(Protocol):
    """A hosted tool with uploaded files, to which the input of requests may refer."""

    @property
    def input_files(self) -> InputFiles: ...


@runtime_checkable
class DetailedTool(Protocol):
    """A hosted tool that knows more of its parts than that they work."""

    def details(self) -> Mapping[str, str]:
        """Return what `check` has found out about parts that work, in words, by their names."""
        ...


@runtime_checkable
class PreparingTool(Protocol):
    """A hosted tool that checks before the server starts what `from_settings` cannot."""

    async def prepare(self) -> Sequence[str] | None:
        """
        Raise ValueError if the tool cannot work with its settings; not if something is unreachable.

        Returns warnings about parts that cannot work, beside others that can.
        """
        ...


class HostedTool(Protocol):
    """A tool of the settings; it is shared by all responses."""

    @property
    def types(self) -> Collection[str]:
        """The types of declarations that it serves, such as `web_search` and `web_search_preview`."""
        ...

    def open(self, declaration: Declaration) -> AbstractAsyncContextManager[ToolSession] | None:
        """
        Return the session for a declaration; None if it is not for this tool or this caller.

        Does no I/O: it is called before the response begins, and raises `InvalidRequest`, with the invalid field, for a
        wrong declaration. Entering the context may do I/O, and does not raise if something is unreachable.

        The context may be entered in one task and left in another, so an anyio cancel scope or an MCP client needs a
        task of its own.
        """
        ...

    async def check(self) -> Mapping[str, str | None]:
        """Check what the tool needs; returns an error, or None if it works, by the name of each part."""
        ...

    async def aclose(self) -> None:
        """Release all resources; the tool is not used afterwards."""
        ...
