"""
What one can do with responses: create, retrieve, list the input of, delete and cancel them.

A response is created in two steps. `create` does all that can go wrong with the request itself, and gives a `Run`; the
run is then drained (JSON), encoded (SSE) or framed, but always the same.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from app.backends import Backend, ChatRequest
from app.background import Background, Following
from app.core import history
from app.core.chat_request import Chat, to_chat
from app.core.chat_stream import ChunkReader
from app.core.dialects import DIALECTS, Dialect
from app.core.events import EventBuilder, Upstream, settled
from app.core.history import Turn
from app.core.ids import chain_key, new_id, new_key
from app.core.response import new_response
from app.core.schema import TERMINAL, CreateResponse, Event, Item, Response
from app.errors import APIError, InvalidRequest, NotFound, PreviousResponseNotFound, StoreUnavailable
from app.loop import respond, stop, warm_up
from app.stores import RunKey, Store

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
        self.key = RunKey(f"{caller.owner}:{made.key}", self.response["id"])
        self.keep: Callable[[Turn], Awaitable[None]] = partial(responses.keep, caller)
        self._backend = responses.backend
        self._kept = responses.keeps(request)
        self._made = made
        self._question = ChatRequest(made.chat.body, caller.key, request.prompt_cache_key or made.key)

    async def events(self, open_after: float | None = None) -> AsyncGenerator[list[Event], None]:
        """Make the response. Raises `APIError` for what fails before the first event; see `respond`."""
        made, response = self._made, self.response
        log.info("response started", extra={"response_id": response["id"], "model": response["model"]})
        try:
            async for events in self._answer(open_after):
                yield events
            await self._keep()
        finally:
            self._log_end()
        made.builder.end()
        yield made.builder.take()

    def _answer(self, open_after: float | None) -> AsyncGenerator[list[Event], None]:
        made = self._made
        if not made.generate:
            return warm_up(made.builder)
        return respond(made.builder, made.reader, self._backend, self._question, open_after=open_after)

    def queue(self) -> list[Event]:
        """Say that the response is made in the background, before it is begun."""
        self._made.builder.queue()
        return self._made.builder.take()

    async def stop(self, error: APIError | None = None) -> list[Event]:
        """
        End the response from outside, once `events` is closed: it fails with that error, or else was cancelled.

        Returns all events that have not been yielded.
        """
        stop(self._made.builder, self._made.reader, self._question, error)
        await self._keep()
        self._log_end()
        self._made.builder.end()
        return self._made.builder.take()

    def turn(self) -> Turn:
        """Return what is to be stored of the response as it stands."""
        upstream = {id: settled(said) for id, said in self._made.builder.upstream.items()}
        return Turn(self.response, self._made.input, upstream)

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
        status = response["status"] if response["status"] in TERMINAL else "interrupted"
        log.info("response ended", extra={"response_id": response["id"], "status": status, "usage": response["usage"]})

    async def _keep(self) -> None:
        if not self._kept:
            return
        try:
            await self.keep(self.turn())
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
    generate: bool  # or is no model to be asked?


class Responses:
    """The responses of all callers, each invisible to all but its own."""

    def __init__(
        self,
        backend: Backend,
        store: Store,
        *,
        background: Background | None = None,
        reasoning: Literal["auto", "content", "summary", "both"] = "auto",
        default_model: str | None = None,
    ) -> None:
        self.backend = backend
        self.store = store
        self._background = background
        self._memory: Store | None = None
        self._reasoning = reasoning
        self._default_model = default_model

    def within(self, memory: Store) -> Responses:
        """Return these responses as one connection has them: those that are not stored are remembered in `memory`."""
        view = copy.copy(self)
        view._memory = memory
        return view

    async def create(self, request: CreateResponse, caller: Caller, *, generate: bool = True) -> Run:
        """
        Begin a response; nothing has been asked of the backend when this returns.

        Without `generate` no model will be asked at all: the response is one to continue from, with its input alone.

        Raises `InvalidRequest` and its kinds for what is wrong with the request, `StoreUnavailable` for a request
        that needs the store while it is away.
        """
        self._check_background(request)
        turns = await self._turns(request, caller)
        model = request.model or (turns[-1].response["model"] if turns else self._default_model)
        if not model:
            raise InvalidRequest("'model' is required.", param="model", code="missing_required_parameter")
        key = (request.previous_response_id and chain_key(request.previous_response_id)) or new_key()
        upstream = {id: said for turn in turns for id, said in turn.upstream.items()}
        new = await self._resolved(request.items(), caller, upstream)
        said = [item for turn in turns for item in turn.items]
        if turns:
            history.check_outputs(said, new)
        profile = self.backend.profile(model)
        chat = to_chat(request, [*said, *new], profile, model=model, upstream=upstream) if generate else _NO_CHAT
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
        kept = [history.input_item(item, key) for item in new] if self.keeps(request) else []
        return Run(self, caller, request, Made(key, kept, chat, builder, reader, generate))

    async def launch(self, run: Run) -> Response:
        """Let a run with `background: true` go on by itself; return the response, which is `queued`."""
        assert self._background
        return await self._background.launch(run)

    async def retrieve(self, response_id: str, caller: Caller) -> Response:
        """Return a stored response; raises `NotFound`."""
        return (await self._load(response_id, caller)).response

    async def follow(self, response_id: str, caller: Caller, after: int = -1) -> Following:
        """
        Return the events of a background response, running or ended, that come after that sequence number.

        Raises `NotFound`, and `InvalidRequest` where there are no events to return.
        """
        response = await self.retrieve(response_id, caller)
        if self._background is None or not response["background"]:
            raise InvalidRequest("Only responses created with `background: true` can be streamed.", param="stream")
        following = await self._background.follow(_run_key(response_id, caller), after)
        if following is None:
            raise InvalidRequest(
                "The events of this response are not kept any more. Retrieve it without `stream`.", param="stream"
            )
        return following

    async def input_items(self, response_id: str, caller: Caller) -> list[Item]:
        """Return the input items of a stored response, of its own turn, oldest first; raises `NotFound`."""
        return (await self._load(response_id, caller)).input

    async def delete(self, response_id: str, caller: Caller) -> None:
        """Forget a stored response. What continued from it cannot be continued any more."""
        bucket = _bucket(response_id, caller)
        if bucket and self._background:
            await self._background.delete(RunKey(bucket, response_id))
        if bucket is None or not await self.store.delete(bucket, response_id):
            raise _not_found(response_id)

    async def cancel(self, response_id: str, caller: Caller) -> Response:
        """
        Cancel a response that runs in the background, and return it; one that has ended stays as it is.

        Raises `NotFound`, and `InvalidRequest` for a response that never was in the background.
        """
        response = await self.retrieve(response_id, caller)
        if not response["background"]:
            raise InvalidRequest("Only responses created with `background: true` can be cancelled.")
        if response["status"] in TERMINAL or self._background is None:
            return response
        await self._background.cancel(_run_key(response_id, caller))
        return await self.retrieve(response_id, caller)

    def keeps(self, request: CreateResponse) -> bool:
        """Tell whether anything will be kept of the response to a request, in the store or in a memory."""
        return request.store or self._memory is not None

    async def keep(self, caller: Caller, turn: Turn) -> None:
        """Store a turn, or remember it; when this returns, it can be continued from."""
        id = turn.response["id"]
        bucket = f"{caller.owner}:{chain_key(id)}"
        if turn.response["store"]:
            await self.store.put(bucket, id, turn.record())
        elif self._memory is not None:
            # What is larger than the memory is forgotten, as all of it may be at any time: see `forget`.
            with contextlib.suppress(StoreUnavailable):
                await self._memory.put(bucket, id, turn.record())

    async def forget(self, response_id: str, caller: Caller) -> None:
        """Forget a response that is only remembered; one that is stored stays."""
        if self._memory is not None and (bucket := _bucket(response_id, caller)):
            await self._memory.delete(bucket, response_id)

    async def _load(self, response_id: str, caller: Caller) -> Turn:
        bucket = _bucket(response_id, caller)
        record = await self.store.get(bucket, response_id) if bucket else None
        if bucket is None or record is None:
            raise _not_found(response_id)
        turn = Turn.of(record)
        if turn.response["status"] in TERMINAL or self._background is None:
            return turn
        # It should be running. If not, it has just ended, or its worker has died.
        if not await self._background.ended(RunKey(bucket, response_id)):
            return turn
        record = await self.store.get(bucket, response_id)
        if record is None:
            raise _not_found(response_id)
        return Turn.of(record)

    async def _turns(self, request: CreateResponse, caller: Caller) -> list[Turn]:
        """Return the turns that the request continues from, oldest first."""
        previous = request.previous_response_id
        if request.store and (previous is None or self._memory is not None):
            await self.store.check()
        if previous is None:
            return []
        bucket = _bucket(previous, caller)
        turns = await self._path(bucket, previous) if bucket else None
        if turns is None:
            raise PreviousResponseNotFound(previous)
        if turns[-1].response["status"] not in TERMINAL:
            message = f"Response '{previous}' has not ended yet. Continue from it when it has."
            raise InvalidRequest(message, param="previous_response_id")
        return turns

    async def _path(self, bucket: str, response_id: str) -> list[Turn] | None:
        """Return the turns up to a response, oldest first; for what a connection remembers no store is needed."""
        if self._memory is not None:
            turns = history.path(await self._memory.all(bucket), response_id)
            if turns is not None:
                return turns
        return history.path(await self._all(bucket), response_id)

    async def _all(self, bucket: str) -> dict[str, bytes]:
        records = await self.store.all(bucket)
        return records if self._memory is None else {**records, **await self._memory.all(bucket)}

    def _check_background(self, request: CreateResponse) -> None:
        if request.background and not request.store:
            raise InvalidRequest("Background responses have to be stored: leave out `store`.", param="background")
        if request.background and self._background is None:
            raise InvalidRequest("This server has no background responses.", param="background")

    async def _resolved(self, items: list[Item], caller: Caller, upstream: dict[str, Upstream]) -> list[Item]:
        """Put the items that are meant in the place of references to them."""
        buckets: dict[str, Mapping[str, bytes]] = {}
        resolved = []
        for index, item in enumerate(items):
            if item["type"] == "item_reference":
                bucket = _bucket(item["id"], caller)
                if bucket and bucket not in buckets:
                    buckets[bucket] = await self._all(bucket)
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


_NO_CHAT = Chat({}, {}, None, ())


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


def _run_key(response_id: str, caller: Caller) -> RunKey:
    bucket = _bucket(response_id, caller)
    assert bucket
    return RunKey(bucket, response_id)


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
