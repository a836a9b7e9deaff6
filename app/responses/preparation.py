from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from app.backends import Backend
from app.core.affinity import conversation_key
from app.core.history.compaction import has_compaction, minimum_after_compaction, without_compacted
from app.core.history.context import RequestContext
from app.core.ids import new_id
from app.core.prompt_template import Prompts, find_prompt
from app.core.request import FRAMEWORK_EVENTS
from app.core.request.model_request import Attempts, EncodedRequest, ModelRequest
from app.core.stream.citations import noted_sources
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder, Upstream
from app.core.stream.event_types import PartType
from app.core.stream.reasoning_fields import ReasoningEncryption
from app.core.stream.stop_sequences import StoppingReader, stop_sequences
from app.core.stream.tool_calls import CallRules
from app.core.types import JSONMapping
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedTools
from app.core.types.request import CreateResponse, Item, Response
from app.core.usage import conversation_of, estimate_prompt
from app.errors import InvalidRequest, missing_parameter
from app.responses import compaction
from app.responses.compaction import SummaryReader
from app.responses.context import HISTORY_CACHE
from app.responses.encryption import ContentCipher
from app.responses.generate import Deadline, ModelQuery
from app.responses.run import Caller
from app.runtime.threads import LARGE_REQUEST, run_in_thread, run_in_thread_if_large
from app.tools import ToolLimits

if TYPE_CHECKING:
    from app.responses.images.descriptions import ImageDescriber

# The used share of the context, because sizes are estimated; summaries are longer than most answers.
MARGIN = 0.9
SUMMARY_MARGIN = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The settings with these names."""

    prompts: Prompts = field(default_factory=dict)
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
        template = find_prompt(self.prompts, prompt.id, prompt.version)
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
        if extra := request.__pydantic_extra__:
            caller.access.check_fields(extra)
        return model

    def check_size(self, body: Mapping[str, object]) -> None:
        """Raises `InvalidRequest` for a prompt beyond the limit."""
        if not self.max_input_tokens or (tokens := estimate_prompt(body)) <= self.max_input_tokens:
            return
        message = f"The input has about {tokens} tokens, which exceeds the limit of {self.max_input_tokens}."
        raise InvalidRequest(message, param="input", code="context_length_exceeded")

    def deadline(self) -> Deadline | None:
        return Deadline(self.max_output_seconds) if self.max_output_seconds else None


class Preparation:
    """
    A response before its first model request, and its model queries: one, or one per round of hosted tools.

    Too long prompts are shortened and sent again: see `ModelQuery.shorten`.
    """

    def __init__(
        self,
        request: CreateResponse,
        caller: Caller,
        context: RequestContext,
        response: Response,
        backend: Backend,
        options: GenerationOptions,
        cipher: ContentCipher,
    ) -> None:
        self.request = request
        self.caller = caller
        self.context = context
        self.response = response
        self.options = options
        self.attempts = Attempts()  # of all rounds
        self.images: ImageDescriber | None = None
        self._backend = backend
        self._cipher = cipher
        # The model's request: with the conversation's configuration, or for a summary.
        self._effective = context.configuration.applied(request)
        self._items: Sequence[Item] = context.items
        self._margin = MARGIN if request.truncation == "auto" else None
        if context.compacts:
            prompt = options.compaction_prompt
            self._effective, self._items = compaction.summary_request(self._effective, context.items, prompt)
            self._margin = SUMMARY_MARGIN

    @property
    def reasoning(self) -> tuple[PartType, ...]:
        """Parts that show raw reasoning: a summary if requested, else content."""
        shown = self.options.reasoning
        if shown == "auto":
            shown = "summary" if self.request.reasoning and self.request.reasoning.summary else "content"
        return self.caller.dialect.reasoning(shown)

    def builder(self, response: Response | None = None) -> EventBuilder:
        context, include = self.context, self.request.include
        encryption = None
        if "reasoning.encrypted_content" in include:
            encryption = ReasoningEncryption(partial(self._cipher.encrypt, "reasoning", self.caller.owner))
        builder = EventBuilder(
            response or self.response,
            new_id=partial(new_id, key=context.key),
            reasoning=self.reasoning,
            encryption=encryption,
        )
        builder.framework_events = FRAMEWORK_EVENTS in include
        if context.upstream and (sources := noted_sources(context.upstream)):
            builder.cite(sources)
        return builder

    def conversation(self) -> str:
        """The conversation's key, for servers that need it."""
        request, context = self.request, self.context
        beginning = request.instructions, request.tools, context.items
        return request.prompt_cache_key or conversation_key(*beginning) or context.key

    async def first_request(self) -> tuple[ModelRequest, EncodedRequest]:
        model_request = self._model_request(self._effective)
        model_request.encoded = await run_in_thread_if_large(self._backend.encode, model_request)
        return model_request, model_request.encoded

    def query(self, builder: EventBuilder) -> Coroutine[Any, Any, ModelQuery]:
        """The only query of a response without hosted tools."""
        request = self.request
        read: Callable[..., DeltaReader] = DeltaReader
        if self.context.compacts:
            progress = self.caller.dialect.compacting and request.stream and not request.background
            read = self._summary_reader(progress=progress)
        return self._query(self._model_request(self._effective), builder, read=read)

    def _summary_reader(self, *, progress: bool) -> Callable[..., DeltaReader]:
        encrypt = partial(self._cipher.encrypt, "compaction", self.caller.owner)
        return partial(SummaryReader, encrypt=encrypt, progress=progress)

    async def in_round(
        self,
        builder: EventBuilder,
        *,
        hosted: HostedTools,
        output: Sequence[Item],
        upstream: Mapping[str, Upstream],
        changes: JSONMapping,
        rules: Callable[..., CallRules] = CallRules,
    ) -> ModelQuery:
        """
        A round's query: the request with `changes`, the conversation and the `output` so far.

        `upstream` contains the backend's fields for output items; `rules` has the response's limits for calls.
        """
        request = self._effective.model_copy(update=dict(changes))
        items = self._items_with(output)
        model_request = self._model_request(request, items, upstream, hosted, len(output))
        return await self._query(model_request, builder, rules)

    def compactable_tokens(self, body: JSONMapping, output: Sequence[Item], upstream: Mapping[str, Upstream]) -> int:
        """The tokens in `body` that a compaction would summarize; encodes a request."""
        request, _ = compaction.summary_request(self._effective, (), "")
        items = minimum_after_compaction([*self._items, *output])
        tokens = estimate_prompt({"messages": conversation_of(body)})
        if items:
            remaining = self._backend.encode(self._model_request(request, items, upstream))
            tokens -= estimate_prompt(remaining.body)
        return tokens

    async def summary(
        self, builder: EventBuilder, output: Sequence[Item], upstream: Mapping[str, Upstream]
    ) -> ModelQuery:
        items = self._items_with(output)
        request, items = compaction.summary_request(self._effective, items, self.options.compaction_prompt)
        request = request.model_copy(update={"max_output_tokens": None})  # the limit is for the answer
        model_request = self._model_request(request, items, upstream)
        read = self._summary_reader(progress=False)
        return await self._query(model_request, builder, read=read, margin=SUMMARY_MARGIN)

    def _items_with(self, output: Sequence[Item]) -> Sequence[Item]:
        if not output:
            return self._items
        items = [*self._items, *output]
        return without_compacted(items) if has_compaction(output) else items

    def _model_request(
        self,
        request: CreateResponse,
        items: Sequence[Item] | None = None,
        upstream: Mapping[str, Upstream] | None = None,
        hosted: HostedTools = NO_HOSTED_TOOLS,
        later: int = 0,
    ) -> ModelRequest:
        context = self.context
        return ModelRequest(
            request,
            self._items if items is None else items,
            self.response["model"],
            {**context.upstream, **upstream} if upstream else context.upstream,
            hosted,
            later,
            self.options.strict,
            self.caller.key,
            self.conversation,
            may_trace_content=self.request.store,
            attempts=self.attempts,
            descriptions=self.images.texts if self.images else None,
        )

    async def _query(
        self,
        model_request: ModelRequest,
        builder: EventBuilder,
        rules: Callable[..., CallRules] = CallRules,
        *,
        read: Callable[..., DeltaReader] = DeltaReader,
        margin: float | None = None,
    ) -> ModelQuery:
        """With a `margin`, too long prompts are shortened and sent again."""
        request = self._effective
        if LARGE_REQUEST.get():  # not `run_in_thread_if_large`, to save a coroutine
            encoded = await run_in_thread(self._backend.encode, model_request)
        else:
            encoded = self._backend.encode(model_request)
        model_request.encoded = encoded
        options = (encoded.profile or self._backend.profile(model_request.model)).response
        if read is DeltaReader and (extra := request.__pydantic_extra__) and (stop := stop_sequences(extra)):
            read = partial(StoppingReader, stop)
        reader = read(
            builder,
            partial(rules, encoded.bindings, encoded.allowed, request.parallel_tool_calls, options.call_name_noise),
            logprobs="message.output_text.logprobs" in request.include or bool(request.top_logprobs),
            finish_required=options.finish_required,
        )
        return ModelQuery(self._backend, model_request, encoded, reader, margin or self._margin, self.images)
