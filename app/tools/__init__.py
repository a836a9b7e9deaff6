"""
Hosted tools: tools that the server runs itself during a response.

A tool is created once, from its settings table `[tools.NAME]`. For a request that declares one of its `types`, the tool
opens a *session* for the response. The session lists the functions that the model may call, and runs the calls. The
loop is in `app.responses`.

    import random
    from app.tools import HostedFunction, HostedTool, Outcome, ToolSession

    class Dice(HostedTool):                            # [tools.dice]  tool = "my_package.dice:Dice"
        types = ("dice",)                              # {"tools": [{"type": "dice", "sides": 6}]} in a request

        def open(self, declaration):
            return DiceSession(declaration.tool.get("sides", 6))

    class DiceSession(ToolSession):
        def __init__(self, sides): self.sides = sides

        async def functions(self, items, report):
            return [HostedFunction("roll", "mcp_call", "Roll the dice.", namespace="dice")]

        async def run(self, call, report):
            number = str(random.randint(1, self.sides))
            return Outcome(number, {"output": number})

The loop guarantees:

- Calls in a session run concurrently unless the request contains `parallel_tool_calls: false`.
- A call runs at most once, if necessary after the caller's approval. Its arguments are a JSON object.
- If the response ends early, `run` is cancelled (`asyncio.CancelledError`), and then the session is closed.
- An `mcp_call` gets its `name` and `server_label` from the function and its namespace.

A tool guarantees:

- `run` returns `Outcome.failed` for errors that the model should see. Exceptions are bugs.
- Outcomes, functions, items and errors contain no secrets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard

from pydantic import BaseModel, ConfigDict

from app.core.access import UNRESTRICTED, KeyAccess
from app.core.types import JSONObject, Usage, frozen
from app.core.types.hosted import HostedFunction as HostedFunction
from app.core.types.hosted import ToolEntry as ToolEntry
from app.core.types.request import Item, Part
from app.core.usage import Counts
from app.errors import InvalidRequest, Warnings

# By table name. Other tables have the key `tool`, an import path `package.module:Class`.
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


class SettingsTable(BaseModel):
    """A table in the TOML file, of a tool or another part of the server."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class ToolLimits:
    max_rounds: int = 16  # then a last round without hosted tools
    parallel: int = 4
    max_result_chars: int = 60_000  # per call, shown to the model
    max_call_seconds: float = 300  # per call


@dataclass(frozen=True, slots=True)
class ToolHost:
    backends: Mapping[str, Any] = field(default_factory=dict)  # `BackendSettings` by name
    directory: Path = Path()  # for relative paths in the settings
    environment: Mapping[str, str] = field(default_factory=dict)
    max_result_chars: int = 60_000  # per call, shown to the model; the loop truncates longer results
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    store_url: str = ""
    workers_directory: Path | None = None  # shared by this server's workers; None with a single worker


@frozen
class Declaration:
    """An entry in a request's `tools`, with its caller."""

    tool: Mapping[str, object]  # as echoed, without secrets
    secrets: Mapping[str, object]  # as sent: with `authorization`, `headers`, and the full `server_url`
    param_path: str  # such as `tools[0]`, for the `param` of errors
    owner: str  # hash of the caller's key
    response_id: str = ""
    chain: str = ""  # the last part in the conversation's ids
    include: frozenset[str] = frozenset()
    # The caller's key in the settings: its table name, if any, and `sha256:` with its SHA-256.
    key_names: frozenset[str] = frozenset()
    access: KeyAccess = UNRESTRICTED
    warnings: Warnings = field(default_factory=Warnings)

    def require(self, *rights: str) -> None:
        """Raises `PermissionDenied` unless the caller's key includes any right."""
        self.access.check_tool(*rights, param=f"{self.param_path}.type")

    def require_model(self, model: str, field: str = "type") -> None:
        """Raises `PermissionDenied`."""
        self.access.check_model(model, param=f"{self.param_path}.{field}")


def text_parameters(**descriptions: str) -> JSONObject:
    """A function's JSON schema with these required strings."""
    properties = {name: {"type": "string", "description": text} for name, text in descriptions.items()}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


RESULT_TRUNCATED = "\n[Result truncated here.]"


def truncated_result(text: str, max_chars: int) -> str:
    """At most `max_chars` characters, including a note for the model if shortened."""
    if len(text) <= max_chars:
        return text
    return text[: max(0, max_chars - len(RESULT_TRUNCATED))] + RESULT_TRUNCATED


def is_label(label: object) -> TypeGuard[str]:
    return isinstance(label, str) and 0 < len(label) <= 128


def unknown_server(declaration: Declaration) -> InvalidRequest:
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
    id: str
    function: HostedFunction
    arguments: JSONObject
    items: Sequence[Item]  # the conversation with this response's finished items, oldest first
    approval_request_id: str | None = None
    call_id: str = ""  # the backend's call id
    deferred: Sequence[ToolEntry] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """
    A citable source.

    `annotation` excludes the position in the text: `{"type": "url_citation", "url", "title"}` or `{"type":
    "file_citation", "file_id", "filename"}`. `mark` is the citation in the model's text, such as `【3】`. A source
    without a mark is cited by links to its `url`.
    """

    annotation: Mapping[str, object]
    mark: str | None = None


@frozen
class Outcome:
    """
    A call's result.

    - `output` is shown to the model: text, or input parts (`{"type": "input_text", "text"}`, `{"type": "input_image",
      "image_url"}`). It is stored with the turn unless the item itself contains it.
    - `fields` are added to the finished item, such as `{"action": {...}}` in a `web_search_call`. The loop removes
      fields that require `include`.
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
        """`message` is for the model and the caller. Default fields: the item type's error fields."""
        return cls(message, fields or {}, "failed", begun=begun)


class CallFailed(Exception):
    """For a tool's own use: `run` returns `Outcome.failed`. The message is safe for the model and the caller."""


class Account:
    """
    An API key's account, charged for tools' backend requests. This class has no limits.

    Before a request, a tool checks the model (`Declaration.require_model`) and the limits. Afterwards it charges the
    reported usage, even if the call fails later.
    """

    async def check_limits(self) -> None:
        """Raises `TooManyRequests` if the key's tokens for this minute, or its budget, are used up."""

    def charge_request(self, model: str, backend: str, usage: Usage, cost: int | None = None) -> None:
        """Charge a backend request; `cost` is reported by the backend, in nano-dollars."""


class Report(Account):
    """
    Progress and charges of a session, of a running call, or of an item opened by `add`.

    Reports after the response's end are ignored; this class ignores all.
    """

    id: str = ""  # the call's or item's

    def event(self, name: str, **fields: object) -> None:
        """Emit a `progress` event of the call's or item's type, such as `partial_image`."""

    def add(self, item_type: str, **fields: object) -> Report:
        """Open an additional item, such as `mcp_list_tools` or `shell_call_output`."""
        return Report()

    def close(self, status: OutcomeStatus = "completed", **fields: object) -> None:
        """End an item opened by `add`."""

    def set_private_data(self, **data: object) -> None:
        """Store data with the item for later turns, hidden from callers."""

    def private_data(self, item: Item) -> Mapping[str, object]:
        """{} for other servers' items."""
        return {}

    def has_stored_image(self, item: Item) -> bool:
        return False

    async def stored_image(self, item: Item) -> str | None:
        """An earlier `image_generation_call`'s `result`, or None if deleted. Raises `StoreUnavailable`."""
        return None

    def warn(self, message: str) -> None:
        """Tell the caller about ignored or adapted parts."""


class ToolSession(AbstractAsyncContextManager["ToolSession"]):
    """
    A tool during a response. Entering the context may do I/O, and must not raise if something is unreachable.

    The context is entered and exited in the same task; each `run` has another task.
    """

    async def __aexit__(self, *exc: object) -> None:
        """Close the session."""

    @abstractmethod
    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """
        Called before the first model call. May do I/O.

        Tools listed in `items`, the conversation, need not be listed again. If the tool is unreachable, it adds an item
        with the error, or warns, and returns no functions.
        """

    @abstractmethod
    async def run(self, call: ToolCall, report: Report) -> Outcome: ...


class InputFiles(Protocol):
    async def resolve(self, items: Sequence[Item], new: Sequence[Item], owner: str, warnings: Warnings) -> list[Item]:
        """Replace file ids with contents; raises `InvalidRequest` for unknown files in `new` items."""
        ...


class HostedTool:
    """A tool needs `types` and `open`; the other methods have defaults."""

    types: Collection[str] = ()
    """Declaration types, such as `web_search` and `web_search_preview`."""
    input_files: InputFiles | None = None
    """Reads files that requests name by id."""

    @classmethod
    def from_settings(cls, table: Mapping[str, Any], host: ToolHost) -> HostedTool:
        """Does no I/O. Raises `ValueError` for an invalid table."""
        return cls()

    def open(self, declaration: Declaration) -> AbstractAsyncContextManager[ToolSession] | None:
        """
        None if the declaration is not for this tool or caller.

        Does no I/O: called before the response starts. Raises `InvalidRequest` with the field for an invalid
        declaration.
        """
        raise NotImplementedError

    def rights(self, declaration: Mapping[str, object]) -> Sequence[str] | None:
        """
        Alternative rights for one of the tool's `declarations`, such as `mcp:lab`, which `open` checks.

        None: the type or the table name, which the loop checks.
        """
        return None

    def declarations(self, key_names: Collection[str]) -> Sequence[Mapping[str, object]]:
        """
        Declarations that a caller may use, without secrets, for the studio and `GET /antiphon/about`.

        See `Declaration.key_names`.
        """
        return ()

    @property
    def resources(self) -> Mapping[str, object]:
        """API resources by name, such as `files`; see `RESOURCES` in `app.assembly.routes`."""
        return {}

    def link(self, tools: Mapping[str, HostedTool]) -> None:
        """Called before any other use, with all tools by table name."""

    async def prepare(self) -> Sequence[str]:
        """Check the settings at start. Returns warnings; raises ValueError, but not if something is unreachable."""
        return ()

    def start(self, account_of: Callable[[str], Account]) -> None:
        """
        Start background tasks in the server's event loop; `aclose` ends them.

        `account_of` returns the account for a key name, to charge work done later.
        """

    async def check(self) -> Mapping[str, str | None]:
        """For `antiphon check`: an error, or None, by dependency name."""
        return {}

    def details(self) -> Mapping[str, str]:
        """Readable descriptions from `check`, by dependency name."""
        return {}

    async def aclose(self) -> None:
        """Called once, at the end."""


class PlainTool(HostedTool):
    """A tool of a class without this base, with the defaults of its missing members."""

    def __init__(self, tool: object) -> None:
        self._tool = tool

    def __getattribute__(self, name: str) -> Any:
        tool = object.__getattribute__(self, "_tool")
        return getattr(tool, name) if hasattr(tool, name) else object.__getattribute__(self, name)


def resources_of(tools: Mapping[str, HostedTool]) -> dict[str, Any]:
    return {name: resource for tool in tools.values() for name, resource in tool.resources.items()}
