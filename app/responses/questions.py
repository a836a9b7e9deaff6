"""The questions of one response to its backend: one, or with hosted tools one per round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from app.backends import Backend, ChatRequest
from app.core.bounded_json import is_large
from app.core.history.compaction import has_compaction, least_of_compacted, without_compacted
from app.core.history.context import RequestContext
from app.core.history.rewrites import with_effort
from app.core.profile import Profile
from app.core.request import ChatTranslation, to_chat
from app.core.request.translation_context import TranslatedPrefix
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_builder import EventBuilder, Upstream
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedTools
from app.core.types.request import CreateResponse, Item
from app.core.types.token_estimate import estimate_chat
from app.responses import compaction
from app.responses.generate import Question
from app.responses.off_loop import MANY
from app.responses.prompt import MARGIN, SUMMARY_MARGIN, Prompt, Truncating


class Questions:
    """Creates the questions of one response from its request and its conversation."""

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
        """`owner_key` is the caller's own API key, for backends that pass it through; for `strict` see `to_chat`."""
        self._context = context
        self.prefix: TranslatedPrefix | None = None  # from the last translation, for later requests
        self._items: Sequence[Item] = context.items
        self._margin = MARGIN
        self.large = _is_large(request, context)  # whether the questions are to be made in a thread
        self._request = with_effort(request, context.effort)
        if context.compacts:
            self._request, self._items = compaction.summary_request(self._request, context.items, compaction_prompt)
            self._margin = SUMMARY_MARGIN
        self._backend = backend
        self._compaction_prompt = compaction_prompt
        self._key = owner_key
        self._model = model
        self._strict = strict
        self.answered_by: list[str] = []  # names of the backends that answered, in all rounds
        self._truncates = context.compacts or request.truncation == "auto"

    def first_request(self) -> tuple[ChatRequest, list[str]]:
        """Return the request of the first question, and warnings about what was left out or changed."""
        prompt = self._prompt(self._request, shared=self._context.shared)
        return self._chat_request(prompt), prompt.warnings

    def first(self, builder: EventBuilder) -> Question:
        """Return the only question of a response without hosted tools."""
        prompt = self._prompt(self._request, shared=self._context.shared)
        return self._question(prompt, builder)

    def in_round(
        self,
        builder: EventBuilder,
        *,
        hosted: HostedTools,
        output: Sequence[Item],
        upstream: Mapping[str, Upstream],
        changes: Mapping[str, Any],
        forbidden: Collection[str] = frozenset(),
        hosted_left: int | None = None,
        call_ids: set[str],
    ) -> Question:
        """
        Return the question of a round: the request with `changes`, the conversation, and the `output` so far.

        `upstream` are the backend's fields of the output's items; for the other parameters see `ChunkReader`.
        """
        request = self._request.model_copy(update=dict(changes))
        shared = 0 if has_compaction(output) else self._context.shared
        items = self._items_with(output)
        prompt = self._prompt(request, hosted, items, upstream, later=len(output), shared=shared)
        return self._question(prompt, builder, forbidden=forbidden, hosted_left=hosted_left, call_ids=call_ids)

    def compactable_tokens(
        self, body: Mapping[str, Any], output: Sequence[Item], upstream: Mapping[str, Upstream]
    ) -> int:
        """Return the estimated tokens of a question with that body that a compaction would summarize."""
        request, _ = compaction.summary_request(self._request, (), "")
        items = least_of_compacted([*self._items, *output])
        remaining = estimate_chat(self._prompt(request, items=items, upstream=upstream).body) if items else 0
        return estimate_chat({"messages": body["messages"]}) - remaining

    def summary(self, builder: EventBuilder, output: Sequence[Item], upstream: Mapping[str, Upstream]) -> Question:
        """Return the question for a summary of the conversation and the output so far."""
        items = self._items_with(output)
        request, items = compaction.summary_request(self._request, items, self._compaction_prompt)
        request = request.model_copy(update={"max_output_tokens": None})  # the limit is for the answer
        prompt = self._prompt(request, items=items, upstream=upstream, margin=SUMMARY_MARGIN)
        return self._question(prompt, builder, truncates=True)

    def _items_with(self, output: Sequence[Item]) -> Sequence[Item]:
        """Return the conversation with the output so far, without the items that a compaction in it replaces."""
        if not output:
            return self._items
        items = [*self._items, *output]
        return without_compacted(items) if has_compaction(output) else items

    def _prompt(
        self,
        request: CreateResponse,
        hosted: HostedTools = NO_HOSTED_TOOLS,
        items: Sequence[Item] | None = None,
        upstream: Mapping[str, Upstream] | None = None,
        *,
        later: int = 0,
        margin: float | None = None,
        shared: int = 0,
    ) -> Prompt:
        """`shared`: see `to_chat`; it counts items of the conversation, also if `items` has more after them."""
        conversation = self._items if items is None else items
        translation = partial(
            to_chat,
            request,
            model=self._model,
            upstream={**self._context.upstream, **upstream} if upstream else self._context.upstream,
            hosted=hosted,
            later=later,
            strict=self._strict,
        )

        def translate(items: Sequence[Item], profile: Profile) -> ChatTranslation:
            if not shared or items is not conversation:
                return translation(items, profile)
            prefix = next((prefix for prefix in self._context.prefixes if prefix.profile is profile), None)
            return translation(items, profile, prefix=prefix, shared=shared)

        prompt = Prompt(conversation, self._backend.profile(self._model), translate, margin=margin or self._margin)
        self.prefix = prompt.chat.prefix or self.prefix
        return prompt

    def _question(self, prompt: Prompt, builder: EventBuilder, *, truncates: bool = False, **reading: Any) -> Question:
        request, chat = self._request, prompt.chat
        reader = ChunkReader(
            builder,
            chat.calls,
            allowed=chat.allowed,
            parallel=request.parallel_tool_calls,
            logprobs="message.output_text.logprobs" in request.include or bool(request.top_logprobs),
            finish_required=prompt.profile.response.finish_required,
            name_noise=prompt.profile.response.call_name_noise,
            **reading,
        )
        backend = Truncating(self._backend, prompt) if truncates or self._truncates else self._backend
        return Question(backend, self._chat_request(prompt), reader, prompt)

    def _chat_request(self, prompt: Prompt) -> ChatRequest:
        conversation = self._request.prompt_cache_key or self._context.key
        return ChatRequest(
            prompt.body,
            self._key,
            conversation,
            self._model,
            prompt.profile,
            prompt.translate_for,
            content_traceable=self._request.store,
            answered_by=self.answered_by,
            large=self.large,
        )


def _is_large(request: CreateResponse, context: RequestContext) -> bool:
    """Return whether a request takes so long to translate that this is done in a thread."""
    translated = max((prefix.items for prefix in context.prefixes), default=0)
    many = len(context.items) - translated + len(request.tools) + len(request.model_extra or ()) > MANY
    continues = request.previous_response_id or request.conversation
    return request.is_large or many or bool(continues and is_large(context.items[translated:]))
