"""
A response's model requests: one, or one per round of hosted tools.

A prompt that is too long is shortened and sent again: see `ModelQuery.shorten`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from app.backends import (
    Backend,
    EncodedRequest,
    ModelRequest,
)
from app.core.affinity import conversation_key
from app.core.history.compaction import has_compaction, minimum_after_compaction, without_compacted
from app.core.history.context import RequestContext
from app.core.request.model_request import Attempts
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder, Upstream
from app.core.stream.stop_sequences import StoppingReader, stop_sequences
from app.core.stream.tool_calls import CallLimits, CallRules
from app.core.types import JSONMapping
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedTools
from app.core.types.request import CreateResponse, Item
from app.core.usage.token_estimate import conversation_of, estimate_prompt
from app.responses import compaction
from app.responses.generate import ImageDescriptions, ModelQuery
from app.runtime.threads import run_in_thread_if_large

logger = logging.getLogger(__name__)

# The used share of the context, because sizes are estimated; summaries are longer than most answers.
MARGIN = 0.9
SUMMARY_MARGIN = 0.7


def _conversation(request: CreateResponse, context: RequestContext) -> str:
    beginning = request.instructions, request.tools, context.items
    return request.prompt_cache_key or conversation_key(*beginning) or context.key


class ModelRequests:
    def __init__(
        self,
        request: CreateResponse,
        context: RequestContext,
        owner_key: str | None,
        backend: Backend,
        model: str,
        compaction_prompt: str = "",
        strict: bool = False,
    ) -> None:
        """`owner_key` is the caller's own API key, for backends that receive it; for `strict` see `to_chat`."""
        self.images: ImageDescriptions | None = None
        self._context = context
        self._items: Sequence[Item] = context.items
        self._conversation = partial(_conversation, request, context)
        self._margin = MARGIN if request.truncation == "auto" else None
        self._request = context.configuration.applied(request)
        if context.compacts:
            self._request, self._items = compaction.summary_request(self._request, context.items, compaction_prompt)
            self._margin = SUMMARY_MARGIN
        self._backend = backend
        self._compaction_prompt = compaction_prompt
        self._key = owner_key
        self._model = model
        self._strict = strict
        self.attempts = Attempts()  # of all rounds

    async def first_request(self) -> tuple[ModelRequest, EncodedRequest]:
        model_request = self._model_request(self._request)
        return model_request, await self._encode(model_request)

    def first(self, builder: EventBuilder, read: Callable[..., DeltaReader]) -> Coroutine[Any, Any, ModelQuery]:
        """The only query of a response without hosted tools."""
        return self._query(self._model_request(self._request), builder, read=read)

    def in_round(
        self,
        builder: EventBuilder,
        *,
        hosted: HostedTools,
        output: Sequence[Item],
        upstream: Mapping[str, Upstream],
        changes: JSONMapping,
        limits: CallLimits,
    ) -> Coroutine[Any, Any, ModelQuery]:
        """
        A round's query: the request with `changes`, the conversation and the `output` so far.

        `upstream` contains the backend's fields for output items; `limits` restrict the calls.
        """
        request = self._request.model_copy(update=dict(changes))
        items = self._items_with(output)
        model_request = self._model_request(request, items, upstream, hosted, len(output))
        return self._query(model_request, builder, limits)

    async def compactable_tokens(
        self, body: JSONMapping, output: Sequence[Item], upstream: Mapping[str, Upstream]
    ) -> int:
        """The tokens in `body` that a compaction would summarize."""
        request, _ = compaction.summary_request(self._request, (), "")
        items = minimum_after_compaction([*self._items, *output])
        tokens = estimate_prompt({"messages": conversation_of(body)})
        if items:
            remaining = await self._encode(self._model_request(request, items, upstream))
            tokens -= estimate_prompt(remaining.body)
        return tokens

    def summary(
        self,
        builder: EventBuilder,
        read: Callable[..., DeltaReader],
        output: Sequence[Item],
        upstream: Mapping[str, Upstream],
    ) -> Coroutine[Any, Any, ModelQuery]:
        items = self._items_with(output)
        request, items = compaction.summary_request(self._request, items, self._compaction_prompt)
        request = request.model_copy(update={"max_output_tokens": None})  # the limit is for the answer
        return self._query(self._model_request(request, items, upstream), builder, read=read, margin=SUMMARY_MARGIN)

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
        context = self._context
        return ModelRequest(
            request,
            self._items if items is None else items,
            self._model,
            {**context.upstream, **upstream} if upstream else context.upstream,
            hosted,
            later,
            self._strict,
            self._key,
            self._conversation,
            may_trace_content=self._request.store,
            attempts=self.attempts,
            descriptions=self.images.texts if self.images else None,
        )

    async def _encode(self, model_request: ModelRequest) -> EncodedRequest:
        encoded = model_request.encoded = await run_in_thread_if_large(self._backend.encode, model_request)
        return encoded

    async def _query(
        self,
        model_request: ModelRequest,
        builder: EventBuilder,
        limits: CallLimits | None = None,
        *,
        read: Callable[..., DeltaReader] = DeltaReader,
        margin: float | None = None,
    ) -> ModelQuery:
        """With a `margin`, a prompt that is too long is shortened and sent again."""
        request = self._request
        encoded = await self._encode(model_request)
        options = (encoded.profile or self._backend.profile(self._model)).response
        if read is DeltaReader and (stop := stop_sequences(request.model_extra)):
            read = partial(StoppingReader, stop)
        rules = CallRules(encoded.bindings, encoded.allowed, request.parallel_tool_calls, options.call_name_noise)
        reader = read(
            builder,
            rules,
            limits,
            logprobs="message.output_text.logprobs" in request.include or bool(request.top_logprobs),
            finish_required=options.finish_required,
        )
        margin = margin or self._margin
        return ModelQuery(self._backend, model_request, encoded, reader, margin, self.images)
