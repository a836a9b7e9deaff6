from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from app.core.history.approvals import ApprovedCall
from app.core.history.context import RequestContext
from app.core.request.tools import deferred_tools
from app.core.stream.event_builder import Upstream
from app.core.types.frozen import frozen
from app.core.types.hosted import DeferredTool, HostedTools
from app.core.types.request import CreateResponse, Item
from app.errors import InvalidRequest
from app.responses.compaction import CompactionOptions
from app.responses.images import StoredImages
from app.responses.policy import InputReview
from app.responses.preparation import Preparation
from app.responses.run import Caller
from app.responses.tool_loop.approvals import Approvals
from app.responses.tool_loop.sessions import DeclaredTool, SessionFunction, open_tools
from app.stores import LayeredStore
from app.tools import NAMED_TYPES, Declaration, HostedTool, ToolLimits


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


def loop_options(
    preparation: Preparation,
    tools: Mapping[str, HostedTool],
    layers: LayeredStore,
    review: InputReview | None = None,
    *,
    generate: bool,
) -> LoopOptions | None:
    """
    The tool loop's options; None for a single answer, or without a generation.

    Raises as `declared_tools`, also without a generation. `review` reviews tool results.
    """
    request, context, caller = preparation.request, preparation.context, preparation.caller
    declared = declared_tools(tools, request, caller, context, preparation.response["id"])
    if context.decisions.approved and not (declared and generate):
        message = "Invalid 'tools': must contain the tools of all approved calls."
        raise InvalidRequest(message, param="tools")
    if not generate:
        return None
    compacting = _compaction(preparation)
    if not declared and not compacting:
        return None
    return LoopOptions(
        limits=preparation.options.tool_limits,
        declared=declared,
        items=context.items,
        deferred=deferred_tools(request.tools, context.items),
        upstream=context.upstream,
        tool_choice=request.tool_choice,
        include=frozenset(request.include),
        parallel=request.parallel_tool_calls,
        max_tool_calls=request.max_tool_calls,
        max_output_tokens=request.max_output_tokens,
        approved=context.decisions.approved,
        approvals=Approvals(layers.store, caller.owner),
        images=StoredImages(layers, caller.owner, context.images),
        shows_tool_usage=caller.dialect.tool_usage,
        compaction=compacting,
        review=review,
    )


def _compaction(preparation: Preparation) -> CompactionOptions | None:
    if preparation.context.compacts or not (management := preparation.request.context_management):
        return None
    default = preparation.options.compact_threshold
    threshold = min(entry.compact_threshold or default for entry in management)
    return CompactionOptions(threshold, preparation.encrypt_summary)


def declared_tools(
    tools: Mapping[str, HostedTool],
    request: CreateResponse,
    caller: Caller,
    context: RequestContext,
    response_id: str = "",
) -> list[DeclaredTool]:
    """
    The request's hosted tool declarations, with unopened sessions. Raises `InvalidRequest` and `PermissionDenied`.
    """
    if context.compacts or not request.tools:
        return []
    types = NAMED_TYPES.union(*(tool.types for tool in tools.values()))
    declarations = (
        Declaration(
            tool=tool,
            secrets=request.tool_secrets.restore(tool),
            param_path=f"tools[{position}]",
            owner=caller.owner,
            response_id=response_id,
            chain=context.key,
            include=frozenset(request.include),
            key_names=caller.key_names,
            access=caller.access,
            warnings=context.warnings,
        )
        if tool["type"] in types
        else None
        for position, tool in enumerate(request.tools)
    )
    return open_tools(tools, declarations)
