"""
Load a request's conversation: earlier turns, referenced items and files.

Turns come from the store, a connection's memory or a conversation object; `app.core.history.context` converts them to
the model's input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.core.history.approvals import has_approval_responses
from app.core.history.context import NewInput, RequestContext, are_messages, continue_past, first_context, join
from app.core.history.past import Past
from app.core.history.turns import Turn
from app.core.ids import chain_key, new_key, partition_of
from app.core.types.request import TERMINAL, CreateResponse, Item
from app.errors import InvalidRequest, NotFound, PreviousResponseNotFound, Warnings
from app.responses.context.cache import CachedPast, HistoryCache, past_after
from app.responses.context.lookup import TurnLookup
from app.responses.conversations import Conversations, before
from app.responses.encryption import ContentCipher, decrypt_input
from app.runtime.threads import add_to_request, read_records
from app.stores import LayeredStore
from app.tools import InputFiles


@dataclass(frozen=True, slots=True)
class ContextLoader:
    conversations: Conversations
    cipher: ContentCipher
    cache: HistoryCache
    files: InputFiles | None = None

    async def context(self, request: CreateResponse, owner: str, layers: LayeredStore) -> RequestContext:
        """
        A request's conversation, with earlier turns from `layers`.

        Raises `InvalidRequest` with the field's name, and `StoreUnavailable`.
        """
        items = request.items()
        if request.previous_response_id is None and not request.conversation and are_messages(items):
            if request.store:
                await layers.store.check()
            context = first_context(items, new_key())
        else:
            lookup = TurnLookup(layers, owner)
            past = await self._past(request, lookup)
            key = chain_key(request.conversation or request.previous_response_id or "") or new_key()
            new_input = await self._input(items, past, lookup, key)
            context = continue_past(past, new_input, request, key)
        return await _with_files(self.files, context, owner) if self.files else context

    async def cache_turn(self, owner: str, turn: Turn, record: bytes) -> None:
        """Cache a stored turn if its earlier turns are cached."""
        previous = turn.response["previous_response_id"]
        if previous and (base := self.cache.get(owner, previous)) and turn.response["status"] in TERMINAL:
            stored = await read_records([record], Turn.of, record)
            self.cache.put(owner, past_after([stored], base))

    async def stored(self, response_id: str, owner: str, layers: LayeredStore) -> tuple[list[Turn], RequestContext]:
        """
        The turns up to a stored response, oldest first, and its request's context.

        Raises `NotFound`, also for a missing earlier turn.
        """
        lookup = TurnLookup(layers, owner)
        turns, _ = await lookup.path(response_id)
        if turns is None:
            raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
        try:
            turns = [*await self._conversation_before(turns[0], owner, response_id), *turns]
        except PreviousResponseNotFound:
            message = f"Conversation of response '{response_id}' not found: it was deleted or has expired."
            raise NotFound(message, param="response_id") from None
        *earlier, turn = turns
        past = Past.of(earlier)
        new_input = NewInput(turn.input, past.upstream | turn.upstream)
        context = join(past, turn.input, new_input, chain_key(response_id) or "")
        return turns, await _with_files(self.files, context, owner) if self.files else context

    async def _past(self, request: CreateResponse, lookup: TurnLookup) -> Past:
        previous, conversation, owner = request.previous_response_id, request.conversation, lookup.owner
        if previous and conversation:
            raise InvalidRequest(
                "Mutually exclusive parameters: send either 'previous_response_id' or 'conversation', not both.",
                param="previous_response_id",
                code="mutually_exclusive_parameters",
            )
        if conversation:
            if not conversation.startswith("conv_"):
                message = f"Invalid 'conversation': '{conversation}'. Expected an ID that begins with 'conv_'."
                raise InvalidRequest(message, param="conversation", code="invalid_value")
            earlier = await self.conversations.turns(conversation, owner, param="conversation")
            return Past.of(earlier)
        if request.store and (previous is None or lookup.layers.memory is not None):
            await lookup.layers.store.check()
        if previous is None:
            return Past()
        if cached := await self._cached_past(previous, lookup):
            add_to_request(cached.size)
            return cached.past
        turns, base = await lookup.path(previous, self.cache)
        if turns is None:
            raise PreviousResponseNotFound(previous)
        if turns[-1].response["status"] not in TERMINAL:
            message = f"Response '{previous}' is still in progress. Continue it when it is complete."
            raise InvalidRequest(message, param="previous_response_id")
        if not base and (turns[0].response.get("conversation") or any(map(_is_unstored, turns))):
            turns = [*await self._conversation_before(turns[0], owner, previous), *turns]
            return Past.of(turns)
        loaded = past_after(turns, base)
        self.cache.put(owner, loaded)
        self.cache.supersede(owner, loaded)
        return loaded.past

    async def _cached_past(self, response_id: str, lookup: TurnLookup) -> CachedPast | None:
        """A response's cached past, if all of it is still stored."""
        partition = partition_of(lookup.owner, response_id)
        cached = self.cache.get(lookup.owner, response_id)
        if partition is None or cached is None:
            return None
        if not await lookup.layers.has_stored(partition, cached.past.response_ids):
            self.cache.remove(lookup.owner, response_id)
            return None
        self.cache.supersede(lookup.owner, cached)
        return cached

    async def _conversation_before(self, turn: Turn, owner: str, previous: str) -> list[Turn]:
        """A conversation's turns before a chain's first turn."""
        if not (conversation := turn.response.get("conversation")):
            return []
        try:
            return before(await self.conversations.turns(conversation["id"], owner), turn.response["id"])
        except NotFound:
            raise PreviousResponseNotFound(previous) from None  # histories are never partial

    async def _input(self, items: list[Item], past: Past, lookup: TurnLookup, key: str) -> NewInput:
        warnings = Warnings()
        upstream = {**past.upstream}
        new = await lookup.resolved(items, past, upstream)
        cipher, owner = self.cipher, lookup.owner
        new, decrypted = await decrypt_input(new, cipher, owner, key=key, known=upstream, warnings=warnings)
        if not has_approval_responses(new):
            return NewInput(new, upstream, decrypted, warnings=warnings)
        new = await lookup.with_stored_requests(new, past, upstream)
        return NewInput(new, upstream, decrypted, await lookup.related(new), warnings)


async def _with_files(files: InputFiles, context: RequestContext, owner: str) -> RequestContext:
    items = await files.resolve(context.items, context.new, owner, context.warnings)
    return replace(context, items=items)


def _is_unstored(turn: Turn) -> bool:
    return turn.response.get("store") is False
