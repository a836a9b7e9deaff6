from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from app.core.history.approvals import answered_before
from app.core.history.context import RequestContext
from app.core.ids import new_id
from app.core.prompt_template import PromptLibrary
from app.core.request import FRAMEWORK_EVENTS
from app.core.request.tools import deferred_tools
from app.core.stream.citations import noted_sources
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import PartType
from app.core.stream.reasoning_encryption import ReasoningEncryption
from app.core.types import JSONObject
from app.core.types.frozen import frozen
from app.core.types.request import CreateResponse, Response
from app.core.usage.token_estimate import estimate_prompt
from app.errors import InvalidRequest, missing_parameter
from app.responses.compaction import CompactionOptions, SummaryReader
from app.responses.context.cache import HISTORY_CACHE
from app.responses.encryption import ContentCipher
from app.responses.generate import Deadline
from app.responses.images import StoredImages
from app.responses.policy import InputReview
from app.responses.run import Caller
from app.responses.tool_loop.approvals import Approvals
from app.responses.tool_loop.options import LoopOptions
from app.responses.tool_loop.sessions import DeclaredTool, open_tools
from app.stores import LayeredStore
from app.tools import NAMED_TYPES, Declaration, HostedTool, ToolLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The settings with these names."""

    prompts: PromptLibrary = field(default_factory=PromptLibrary)
    compaction_prompt: str = ""
    compact_threshold: int = 100_000
    reasoning: Literal["auto", "content", "summary", "both"] = "auto"
    strict: bool = False
    default_model: str | None = None
    max_input_tokens: int = 0
    max_output_seconds: float = 0
    history_cache: int = HISTORY_CACHE  # read at the start only
    max_stored_bytes: int = 0  # read at the start only
    tool_limits: ToolLimits = field(default_factory=ToolLimits)

    def with_prompt(self, request: CreateResponse) -> CreateResponse:
        """
        Insert the prompt template's instructions.

        Raises `NotFound` for an unknown template, and `InvalidRequest` for wrong variables.
        """
        prompt = request.prompt
        if prompt is None:
            return request
        template = self.prompts.find(prompt.id, prompt.version)
        texts = [template.render(prompt.variables or {}), request.instructions]
        return request.model_copy(
            update={
                "instructions": "\n\n".join(text for text in texts if text),
                "model": request.model or template.model,
                "prompt": prompt.model_copy(update={"version": template.version}),
            }
        )

    def model(self, request: CreateResponse, context: RequestContext, caller: Caller) -> str:
        """Raises `InvalidRequest` without a model, and `PermissionDenied`."""
        model = request.model or context.model or self.default_model
        if not model:
            raise missing_parameter("model")
        caller.access.check_model(model)
        caller.access.check_fields(request.model_extra or {})
        return model

    def check_size(self, body: Mapping[str, object]) -> None:
        """Raises `InvalidRequest` for a prompt beyond the limit."""
        if not self.max_input_tokens or (tokens := estimate_prompt(body)) <= self.max_input_tokens:
            return
        message = f"The input has about {tokens} tokens, which exceeds the limit of {self.max_input_tokens}."
        raise InvalidRequest(message, param="input", code="context_length_exceeded")

    def deadline(self) -> Deadline | None:
        return Deadline(self.max_output_seconds) if self.max_output_seconds else None


@frozen
class Preparation:
    """`layers` adds a connection's memory to the store."""

    request: CreateResponse
    caller: Caller
    context: RequestContext
    response: Response
    layers: LayeredStore
    options: GenerationOptions
    cipher: ContentCipher

    @property
    def reasoning(self) -> tuple[PartType, ...]:
        """Parts that show raw reasoning: a summary if requested, else content."""
        summary = self.request.reasoning and self.request.reasoning.summary
        setting = self.options.reasoning
        return self.caller.dialect.reasoning(setting if setting != "auto" else "summary" if summary else "content")

    def builder(self, response: Response | None = None) -> EventBuilder:
        request, caller = self.request, self.caller

        def make_id(prefix: str) -> str:
            return new_id(prefix, self.context.key)

        encryption = None
        if "reasoning.encrypted_content" in request.include:
            encryption = ReasoningEncryption(partial(self.cipher.encrypt, "reasoning", caller.owner))
        builder = EventBuilder(
            response or self.response, new_id=make_id, reasoning=self.reasoning, encryption=encryption
        )
        builder.framework_events = FRAMEWORK_EVENTS in request.include
        if sources := noted_sources(self.context.upstream):
            builder.cite(sources)
        return builder

    def reader(self) -> Callable[..., DeltaReader]:
        if not self.context.compacts:
            return DeltaReader
        request, caller = self.request, self.caller
        progress = caller.dialect.compacting and request.stream and not request.background
        return partial(SummaryReader, encrypt=self._encrypt_summary(), progress=progress)

    def _encrypt_summary(self) -> Callable[[JSONObject], str]:
        return partial(self.cipher.encrypt, "compaction", self.caller.owner)

    def loop_options(
        self, tools: Mapping[str, HostedTool], review: InputReview | None = None, *, generate: bool
    ) -> LoopOptions | None:
        """
        The tool loop's options; None for a single answer, or without a generation.

        Raises as `declared_tools`, also without a generation. `review` reviews tool results.
        """
        request, context = self.request, self.context
        declared = declared_tools(tools, request, self.caller, context, self.response["id"])
        if context.decisions.approved and not (declared and generate):
            message = "Invalid 'tools': must contain the tools of all approved calls."
            raise InvalidRequest(message, param="tools")
        if not generate:
            return None
        compacting = self._compaction()
        if not declared and not compacting:
            return None
        return LoopOptions(
            limits=self.options.tool_limits,
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
            approvals=self._approvals(),
            images=StoredImages(self.layers, self.caller.owner, context.images),
            shows_tool_usage=self.caller.dialect.tool_usage,
            compaction=compacting,
            review=review,
        )

    async def decide(self) -> None:
        """
        Store the request's denials, so that the calls cannot be approved later.

        Raises `InvalidRequest` for contradictory answers, and `StoreUnavailable`.
        """
        decisions, approvals = self.context.decisions, self._approvals()
        for call in decisions.approved:
            if await approvals.is_denied(call.request["id"]):
                raise answered_before(call.path, denied=True)
        for request_id, path in decisions.denied.items():
            if not await approvals.deny(request_id):
                raise answered_before(path, denied=False)

    def _approvals(self) -> Approvals:
        return Approvals(self.layers.store, self.caller.owner)

    def _compaction(self) -> CompactionOptions | None:
        if self.context.compacts or not (management := self.request.context_management):
            return None
        threshold = min(entry.compact_threshold or self.options.compact_threshold for entry in management)
        return CompactionOptions(threshold, self._encrypt_summary())


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
