from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from app.core.history.approvals import ApprovedCall
from app.core.stream.event_builder import Upstream
from app.core.types.frozen import frozen
from app.core.types.hosted import DeferredTool, HostedTools
from app.core.types.request import Item
from app.responses.compaction import CompactionOptions
from app.responses.images import StoredImages
from app.responses.policy import InputReview
from app.responses.tool_loop.approvals import Approvals
from app.responses.tool_loop.sessions import DeclaredTool, SessionFunction
from app.tools import ToolLimits


@frozen
class LoopOptions:
    """The same in all rounds of a response."""

    limits: ToolLimits
    declared: Sequence[DeclaredTool]
    items: Sequence[Item]
    deferred: Sequence[DeferredTool] = ()  # client tools for tool search
    upstream: Mapping[str, Upstream] = field(default_factory=dict)  # backend fields and notes by item id
    tool_choice: Any = "auto"  # the request's; see `choice`
    include: Collection[str] = frozenset()
    parallel: bool = True
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    approved: Sequence[ApprovedCall] = ()
    approvals: Approvals | None = None  # claims the `approved` calls
    shows_tool_usage: bool = False
    images: StoredImages | None = None  # images of earlier turns
    compaction: CompactionOptions | None = None  # None: never compact
    review: InputReview | None = None  # reviews tool results before the model sees them

    def hosted(self, functions: Sequence[SessionFunction] = ()) -> HostedTools:
        return HostedTools(
            [(entry.function, entry.tool.types) for entry in functions],
            frozenset(tool.position for tool in self.declared),
            frozenset(type_name for tool in self.declared for type_name in tool.types),
        )

    def choice(self, *, last: bool) -> Any:
        """`tool_choice` after the first round: not forced; without hosted tools in the `last` round."""
        choice = self.tool_choice
        if isinstance(choice, str):
            return "none" if choice == "none" else "auto"
        if choice["type"] != "allowed_tools":
            return "auto"
        types = self.hosted().types
        tools = [tool for tool in choice["tools"] if not (last and tool["type"] in types)]
        return {**choice, "mode": "auto", "tools": tools} if tools else "none"
