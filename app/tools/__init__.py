"""
Hosted tools: tools that the server runs itself while it makes a response.

A tool is made once, from its table `[tools.NAME]` of the settings. For each response whose request declares one of its
`types` it opens a *session*. The session says which functions the model may call, and runs the calls. It knows nothing
of streams: the loop (`app.responses`) asks the model, opens the items, runs the calls side by side, emits the events
that the table of item types (`app.core.types.items`) lists for them, and stores what the model was shown.

    class Dice:                                        # [tools.dice]  tool = "my_package.dice:Dice"
        types = ("dice",)                              # {"tools": [{"type": "dice", "sides": 6}]} in a request

        @classmethod
        def from_settings(cls, table, host):           # raises ValueError for a table that is wrong
            return cls()

        @asynccontextmanager
        async def open(self, declaration):             # one session per declaration and response
            yield DiceSession(declaration.tool.get("sides", 6))

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

What the loop guarantees to a tool: calls of one session may run side by side, unless the request says
`parallel_tool_calls: false`; a call is run at most once; its arguments are a JSON object; a call that needs an approval
is run only after the caller has given it; when the response is cancelled, times out or its client goes, `run` is
cancelled (`asyncio.CancelledError`) and then the session is closed.

What a tool guarantees to the loop: `run` does not raise for what a model can be told (a refusal, a timeout, a 500):
that is `Outcome.failed`. Whatever it raises all the same is logged as a bug and ends the one item as failed. No secret
is in an outcome, a function, an item or an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from app.core.types.hosted import HostedFunction
from app.core.types.request import Item, Part

__all__ = [
    "TOOLS",
    "Declaration",
    "DeclaringTool",
    "HostedFunction",
    "HostedTool",
    "Outcome",
    "OutcomeStatus",
    "Report",
    "ReportedItem",
    "Source",
    "ToolCall",
    "ToolHost",
    "ToolLimits",
    "ToolSession",
]

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

OutcomeStatus: TypeAlias = Literal["completed", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """How much of hosted tools one response may have."""

    max_rounds: int = 16  # of questions to the model, before one last question without hosted tools
    parallel: int = 4  # calls that run side by side
    max_result_chars: int = 60_000  # of what the model is shown of one call
    max_call_seconds: float = 300  # of one call


@dataclass(frozen=True, slots=True)
class ToolHost:
    """What a tool may use of the server that it is part of."""

    backends: Mapping[str, Any] = field(default_factory=dict)  # the settings of the backends by name: `BackendSettings`
    directory: Path = Path()  # that relative paths of the settings start from
    environment: Mapping[str, str] = field(default_factory=dict)  # its variables, for settings such as `api_key_env`
    max_result_chars: int = 60_000  # of what the model is shown of one call; the loop cuts what is longer
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of all tools, by name
    workers_directory: Path | None = None  # private to the workers of this server; None where there is only one


@dataclass(frozen=True, slots=True)
class Declaration:
    """One entry of a request's `tools` that a hosted tool is to serve, and who declared it."""

    tool: Mapping[str, object]  # as it is echoed: without secrets
    secrets: Mapping[str, object]  # the declaration as sent: with `authorization`, `headers`, all of `server_url`
    place: str  # of the declaration in the request, such as `tools[0]`: for the `param` of errors
    owner: str  # the hash of the caller's key: whose are the things that are stored
    response_id: str
    chain: str  # the key of the conversation's chain: the last part of its ids
    include: frozenset[str] = frozenset()  # of the request
    deadline: float | None = None  # when the response has to end, in the time of the event loop


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model made."""

    id: str  # of its item
    function: HostedFunction
    arguments: dict[str, Any]
    items: Sequence[Item]  # the conversation so far, oldest first, this response's finished items included
    approval_request_id: str | None = None  # the request that was approved, where the function needs it
    call_id: str = ""  # of the call, as the backend knows it
    deferred: Sequence[HostedFunction] = ()  # the functions of all sessions that a search may find


@dataclass(frozen=True, slots=True)
class Source:
    """
    What the text of an answer may cite.

    `annotation` is the annotation without its position in the text: `{"type": "url_citation", "url", "title"}` or
    `{"type": "file_citation", "file_id", "filename"}`. `mark` is what the model was told to write for it, such as
    `【3】`; a source without a mark is cited by links to its `url`.
    """

    annotation: Mapping[str, Any]
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What came of a call.

    `output` is what the model is shown: text, or parts of input content (`{"type": "input_text", "text"}`,
    `{"type": "input_image", "image_url"}`). It is stored with the turn where the item itself does not say it.
    `fields` are of the finished item, such as `{"action": {...}}` of a `web_search_call`. Fields that callers see only
    if their `include` asks for them (`results` of a `file_search_call`) are always given; the loop leaves them out.
    `usage` is added up in the response's `tool_usage`: `{"web_search": {"num_requests": 1}}`.
    """

    output: str | list[Part]
    fields: Mapping[str, object] = field(default_factory=dict)
    status: OutcomeStatus = "completed"
    sources: Sequence[Source] = ()
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def failed(cls, message: str, fields: Mapping[str, object] | None = None) -> Outcome:
        """
        Return the outcome of a call that failed, as the model and the caller are told of it.

        Where `fields` are left out, the item gets the error that its type has for a message.
        """
        return cls(message, fields or {}, "failed")


class ReportedItem(Protocol):
    """An item that a tool has added to the output and will close."""

    @property
    def id(self) -> str: ...

    def event(self, name: str, **fields: object) -> None:
        """Emit one of the `progress` events that the item's type lists, by its short name."""
        ...

    def note(self, **notes: object) -> None:
        """Store something with the item that no caller is shown: `Report.notes` gives it in later turns."""
        ...

    def close(self, status: OutcomeStatus = "completed", **fields: object) -> None:
        """End the item with these fields: emits the event of that status, if its type has one, and its `done`."""
        ...


class Report(Protocol):
    """How a session tells what happens while it works. Nothing here waits, and after the response's end it is void."""

    def event(self, name: str, **fields: object) -> None:
        """Emit a `progress` event of the running call's item, such as `partial_image`; not while listing."""
        ...

    def add(self, type: str, **fields: object) -> ReportedItem:
        """Add an item of another type to the output, such as `mcp_list_tools` or `shell_call_output`, and open it."""
        ...

    def notes(self, item: Item) -> Mapping[str, object]:
        """Return what is stored with an item of the conversation; nothing for one that came from elsewhere."""
        ...

    def warn(self, message: str) -> None:
        """Tell the caller what was left out or adapted, in one sentence."""
        ...


class ToolSession(Protocol):
    """A tool during one response."""

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """
        Return what the model may call; called once, before the model is asked. May do I/O, such as MCP's list.

        `items` is the conversation so far: a list that stands in it need not be read again. A tool that cannot be
        reached adds the item that says so, or warns, and returns nothing: the answer goes on without it.
        """
        ...

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        """Run a call, once."""
        ...


@runtime_checkable
class DeclaringTool(Protocol):
    """A hosted tool that can say how a caller may declare it, where its type alone does not."""

    def declarations(self, owner: str) -> Sequence[Mapping[str, object]]:
        """Return declarations for requests of that owner, without anything secret."""
        ...


class HostedTool(Protocol):
    """A tool of the settings; it is shared by all responses."""

    @property
    def types(self) -> Collection[str]:
        """The types of declarations that it serves, such as `web_search` and `web_search_preview`."""
        ...

    def open(self, declaration: Declaration) -> AbstractAsyncContextManager[ToolSession] | None:
        """
        Return the session for a declaration; None where it is not for this tool or this caller.

        No I/O here: it is called before the response begins, and raises `InvalidRequest`, with the field at fault, for
        what cannot be meant. Entering the context does the I/O that it needs and does not raise for what is away.

        The context may be entered in one task and left in another, so what has to stay in one task (an anyio cancel
        scope, an MCP client) has a task of its own.
        """
        ...

    async def check(self) -> Mapping[str, str | None]:
        """Try what the tool needs: what is wrong with each part, by its name; None where it works."""
        ...

    async def aclose(self) -> None:
        """Give back what the tool has; it is not used afterwards."""
        ...
