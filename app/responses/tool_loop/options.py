from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.core.history.context import RequestContext
from app.core.types.frozen import frozen
from app.core.types.hosted import HostedTools
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from app.responses.images import StoredImages
from app.responses.policy import InputReview
from app.responses.preparation import Preparation
from app.responses.run import Caller
from app.responses.tool_loop.approvals import Approvals
from app.responses.tool_loop.sessions import DeclaredTool, SessionFunction, open_tools
from app.stores import LayeredStore
from app.tools import NAMED_TYPES, Declaration, HostedTool


@frozen
class LoopOptions:
    """The same in all rounds of a response."""

    preparation: Preparation
    declared: Sequence[DeclaredTool]
    approvals: Approvals
    images: StoredImages  # from earlier turns
    compact_threshold: int | None = None  # prompt tokens; None: never compact
    review: InputReview | None = None  # reviews tool results before the model sees them

    def hosted(self, functions: Sequence[SessionFunction] = ()) -> HostedTools:
        return HostedTools(
            [(entry.function, entry.tool.types) for entry in functions],
            frozenset(tool.position for tool in self.declared),
            frozenset(type_name for tool in self.declared for type_name in tool.types),
        )

    def choice(self, *, last: bool) -> Any:
        """`tool_choice` after the first round: not forced; without hosted tools in the `last` round."""
        choice: Any = self.preparation.request.tool_choice
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
    threshold: int | None = None
    if request.context_management and not context.compacts:
        default = preparation.options.compact_threshold
        threshold = min(entry.compact_threshold or default for entry in request.context_management)
    if not declared and threshold is None:
        return None
    return LoopOptions(
        preparation,
        declared,
        Approvals(layers.store, caller.owner),
        StoredImages(layers, caller.owner, context.images),
        threshold,
        review,
    )


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
