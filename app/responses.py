"""
What one can do with responses: create, retrieve, list the input of, delete and cancel them.

A response is created in two steps. `create` does all that can go wrong with the request itself, and gives a `Run`; the
run is then drained (JSON), encoded (SSE) or framed, but always the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.backends import Backend, ChatRequest
from app.core import history
from app.core.chat_request import Chat, to_chat
from app.core.chat_stream import ChunkReader
from app.core.dialects import DIALECTS, Dialect
from app.core.events import EventBuilder, Upstream, settled
from app.core.history import Turn
from app.core.ids import chain_key, new_id, new_key
from app.core.response import new_response
from app.core.schema import TERMINAL, CreateResponse, Event, Item, Response
from app.errors import APIError, InvalidRequest, NotFound, PreviousResponseNotFound
from app.loop import respond
from app.stores import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    owner: str = "anonymous"  # the hash of the caller's key: whose are the things that are stored
    key: str | None = None  # the key itself, for backends that pass it through
    dialect: Dialect = DIALECTS["openresponses"]


class Run:
    """
    One response in the making: `response` is what there is of it, and the events come by iterating, in lists.

    The terminal event comes last, and after the response has been stored: whoever hears of it can continue from it.
    """

    def __init__(self, responses: Responses, caller: Caller, request: CreateResponse, made: Made) -> None:
        self.response = made.builder.response
        self.warnings = made.chat.warnings
        self._responses = responses
        self._caller = caller
        self._request = request
        self._made = made

    async def events(self, open_after: float | None = None) -> AsyncGenerator[list[Event], None]:
        """Make the response. Raises `APIError` for what fails before the first event; see `respond`."""
        made, response = self._made, self.response
        question = ChatRequest(made.chat.body, self._caller.key, self._request.prompt_cache_key or made.key)
        log.info("response started", extra={"response_id": response["id"], "model": response["model"]})
        try:
            async for events in respond(
                made.builder, made.reader, self._responses.backend, question, open_after=open_after
            ):
                yield events
            await self._keep()
        finally:
            self._log_end()
        made.builder.end()
        yield made.builder.take()

    async def drain(self) -> Response:
        """
        Make the response, and return it whole.

        Raises `APIError` where nothing at all came of it: clients retry on an HTTP status, not on a failed response.
        """
        async for _ in self.events():
            pass
        failure = self._made.builder.failure
        if failure and not self.response["output"]:
            raise failure
        return self.response

    def keepalive(self) -> list[Event]:
        """Return the event that tells a client of OpenAI's that the response lives."""
        self._made.builder.keepalive()
        return self._made.builder.take()

    def _log_end(self) -> None:
        response = self.response
        status = response["status"] if response["status"] in TERMINAL else "abandoned"
        log.info("response ended", extra={"response_id": response["id"], "status": status, "usage": response["usage"]})

    async def _keep(self) -> None:
        if not self.response["store"]:
            return
        upstream = {id: settled(said) for id, said in self._made.builder.upstream.items()}
        try:
            await self._responses.keep(self._caller, Turn(self.response, self._made.input, upstream))
        except APIError as error:
            log.warning("response not stored", extra={"response_id": self.response["id"], "reason": str(error)})
            self._made.builder.fail(error)


@dataclass(frozen=True, slots=True)
class Made:
    """The parts that a run is made of."""

    key: str  # of the chain
    input: list[Item]
    chat: Chat
    builder: EventBuilder
    reader: ChunkReader


class Responses:
    """The responses of all callers, each invisible to all but its own."""

    def __init__(
        self,
        backend: Backend,
        store: Store,
        *,
        reasoning: Literal["auto", "content", "summary", "both"] = "auto",
        default_model: str | None = None,
    ) -> None:
        self.backend = backend
        self.store = store
        self._reasoning = reasoning
        self._default_model = default_model

    async def create(self, request: CreateResponse, caller: Caller) -> Run:
        """
        Begin a response; nothing has been asked of the backend when this returns.

        Raises `InvalidRequest` and its kinds for what is wrong with the request, `StoreUnavailable` for a request
        that needs the store while it is away.
        """
        turns = await self._turns(request, caller)
        model = request.model or (turns[-1].response["model"] if turns else self._default_model)
        if not model:
            raise InvalidRequest("'model' is required.", param="model", code="missing_required_parameter")
        key = (request.previous_response_id and chain_key(request.previous_response_id)) or new_key()
        upstream = {id: said for turn in turns for id, said in turn.upstream.items()}
        new = await self._resolved(request.items(), caller, upstream)
        said = [item for turn in turns for item in turn.items]
        profile = self.backend.profile(model)
        chat = to_chat(request, [*said, *new], profile, model=model, upstream=upstream)
        for warning in chat.warnings:
            log.warning("request adapted", extra={"reason": warning})
        response = new_response(
            request, id=new_id("resp", key), created_at=int(time.time()), model=model, store=request.store
        )
        builder = EventBuilder(
            response,
            reasoning=caller.dialect.reasoning(self._shown(request)),
            new_id=lambda prefix: new_id(prefix, key),
        )
        reader = ChunkReader(
            builder,
            chat.calls,
            allowed=chat.allowed,
            parallel=request.parallel_tool_calls,
            logprobs="message.output_text.logprobs" in request.include or bool(request.top_logprobs),
            finish_required=profile.response.finish_required,
        )
        kept = [history.input_item(item, key) for item in new] if request.store else []
        return Run(self, caller, request, Made(key, kept, chat, builder, reader))

    async def retrieve(self, response_id: str, caller: Caller) -> Response:
        """Return a stored response; raises `NotFound`."""
        return (await self._load(response_id, caller)).response

    async def input_items(self, response_id: str, caller: Caller) -> list[Item]:
        """Return the input items of a stored response, of its own turn, oldest first; raises `NotFound`."""
        return (await self._load(response_id, caller)).input

    async def delete(self, response_id: str, caller: Caller) -> None:
        """Forget a stored response. What continued from it cannot be continued any more."""
        bucket = _bucket(response_id, caller)
        if bucket is None or not await self.store.delete(bucket, response_id):
            raise _not_found(response_id)

    async def cancel(self, response_id: str, caller: Caller) -> Response:
        """Cancel a response that runs in the background; raises `InvalidRequest` for one that never did."""
        response = await self.retrieve(response_id, caller)
        if not response["background"]:
            raise InvalidRequest("Only responses created with `background: true` can be cancelled.")
        return response

    async def keep(self, caller: Caller, turn: Turn) -> None:
        """Store a turn; when this returns, it can be continued from."""
        id = turn.response["id"]
        await self.store.put(f"{caller.owner}:{chain_key(id)}", id, turn.record())

    async def _load(self, response_id: str, caller: Caller) -> Turn:
        bucket = _bucket(response_id, caller)
        record = await self.store.get(bucket, response_id) if bucket else None
        if record is None:
            raise _not_found(response_id)
        return Turn.of(record)

    async def _turns(self, request: CreateResponse, caller: Caller) -> list[Turn]:
        """Return the turns that the request continues from, oldest first."""
        previous = request.previous_response_id
        if previous is None:
            if request.store:
                await self.store.check()
            return []
        bucket = _bucket(previous, caller)
        turns = history.path(await self.store.all(bucket), previous) if bucket else None
        if turns is None:
            raise PreviousResponseNotFound(previous)
        return turns

    async def _resolved(self, items: list[Item], caller: Caller, upstream: dict[str, Upstream]) -> list[Item]:
        """Put the items that are meant in the place of references to them."""
        buckets: dict[str, Mapping[str, bytes]] = {}
        resolved = []
        for index, item in enumerate(items):
            if item["type"] == "item_reference":
                bucket = _bucket(item["id"], caller)
                if bucket and bucket not in buckets:
                    buckets[bucket] = await self.store.all(bucket)
                found = history.find_item(buckets.get(bucket or "", {}).values(), item["id"])
                if found is None:
                    raise NotFound(f"Item with id '{item['id']}' not found.", param=f"input[{index}].id")
                item, upstream[item["id"]] = found
            resolved.append(item)
        return resolved

    def _shown(self, request: CreateResponse) -> str:
        """Say how raw reasoning is shown: as a summary if the caller asked for one, else as content."""
        if self._reasoning != "auto":
            return self._reasoning
        return "summary" if request.reasoning and request.reasoning.summary else "content"


async def find_model(backend: Backend, name: str, caller: Caller) -> dict[str, Any]:
    """Return a model of the backend's list; raises `NotFound`."""
    for model in await backend.models(caller.key):
        if model["id"] == name:
            return model
    raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")


def _bucket(id: str, caller: Caller) -> str | None:
    """Return the bucket of the chain that an id belongs to, as that caller's; None if it is no id of ours."""
    key = chain_key(id)
    return f"{caller.owner}:{key}" if key else None


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
