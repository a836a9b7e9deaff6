from __future__ import annotations

from functools import partial

from app.backends import LOW_PRIORITY
from app.core.history.turns import Turn, input_item, recorded_request
from app.core.ids import partition_of
from app.core.profile import Profile
from app.core.request import known_extra_parameters
from app.core.types.request import TERMINAL, CreateResponse, Item, Response
from app.errors import InvalidRequest, NotFound
from app.responses.background import Background, EventSubscription
from app.responses.context import ContextLoader
from app.responses.images import load_images, turn_changes
from app.responses.preparation import Preparation
from app.responses.run import Caller, Run, Storage
from app.runtime.threads import read_records
from app.stores import Change, LayeredStore, RunKey, Store, apply_with, images_partition


class StoredResponses:
    """Stored responses are visible only to their owner. Unknown ids raise `NotFound`."""

    def __init__(self, store: Store, loader: ContextLoader, background: Background) -> None:
        self._store = store
        self._loader = loader
        self._background = background

    async def launch(self, request: CreateResponse, run: Run) -> Response:
        options = request.background_options
        if options and options.completion_window != "soonest":
            LOW_PRIORITY.set(True)  # the task inherits this context
        return await self._background.launch(run)

    async def retrieve(self, response_id: str, caller: Caller) -> Response:
        return (await self._load_shown(response_id, caller)).response

    async def follow(self, response_id: str, caller: Caller, after: int = -1) -> EventSubscription:
        """A background response's events after a sequence number; raises `InvalidRequest` if they are not stored."""
        response = (await self._load(response_id, caller)).response
        if not response["background"]:
            raise InvalidRequest("Only responses created with `background: true` can be streamed.", param="stream")
        subscription = await self._background.follow(_run_key(response_id, caller.owner), after)
        if subscription is None:
            raise InvalidRequest(
                "The events of this response are no longer stored. Retrieve it without `stream`.", param="stream"
            )
        return subscription

    async def input_items(self, response_id: str, caller: Caller) -> list[Item]:
        return (await self._load_shown(response_id, caller)).input

    async def turns(self, response_id: str, caller: Caller) -> list[Turn]:
        """The turns up to a response, oldest first; raises `NotFound`, also for a missing earlier turn."""
        path, _ = await self._loader.stored(response_id, caller.owner, LayeredStore(None, self._store))
        return [await load_images(self._store, caller.owner, turn) for turn in path]

    async def delete(self, response_id: str, caller: Caller) -> None:
        """Later responses in its chain can no longer be continued."""
        partition = partition_of(caller.owner, response_id)
        deleted = partition is not None and await self._store.apply(
            Change(partition, {}, delete=[response_id], requires=response_id),
            Change(images_partition(partition), {}, delete=[response_id]),
        )
        self._loader.cache.remove_with(caller.owner, response_id)
        if partition:  # last, because cleanup after a dead worker first checks for the response
            await self._background.delete(RunKey(partition, response_id))
        if not deleted:
            raise _not_found(response_id)

    async def cancel(self, response_id: str, caller: Caller) -> Response:
        """An ended response is returned unchanged. Raises `InvalidRequest`."""
        response = await self.retrieve(response_id, caller)
        if not response["background"]:
            message = "Cannot cancel a synchronous response. Only one created with `background: true` can be cancelled."
            raise InvalidRequest(message)
        if response["status"] in TERMINAL:
            return response
        await self._background.cancel(_run_key(response_id, caller.owner))
        return await self.retrieve(response_id, caller)

    def check_background(self, request: CreateResponse) -> None:
        """Raises `InvalidRequest` for an unsupported background request."""
        if request.background and not request.store:
            message = "Invalid 'store': must be true or omitted with `background: true`."
            raise InvalidRequest(message, param="background")
        options = request.background_options
        if options and options.completion_window != "soonest" and (request.stream or not request.background):
            param = "background_options.completion_window"
            message = f"Invalid '{param}': '{options.completion_window}' requires `background: true` without `stream`."
            raise InvalidRequest(message, param=param)

    def storage(self, preparation: Preparation, layers: LayeredStore, profile: Profile) -> Storage | None:
        """None for an unstored response; `layers` can have the memory of the caller's connection."""
        request, caller, context = preparation.request, preparation.caller, preparation.context
        if not request.store and layers.memory is None:
            return None
        added = [input_item(item, context.key) for item in context.new]
        recorded = recorded_request(request, known_extra_parameters(profile.request))
        return Storage(partial(self._save, request, caller.owner, layers), added, recorded)

    async def _save(self, request: CreateResponse, owner: str, layers: LayeredStore, turn: Turn, again: bool) -> None:
        """
        Store a turn and its addition to a conversation, or keep it in the connection's memory.

        Deleted objects stay deleted: with `again`, a turn is only replaced, and a deleted conversation is not extended.
        """
        run = _run_key(turn.response["id"], owner)
        addition = self._loader.conversations.addition(request, owner, turn)
        if request.background:
            await self._background.save(run, turn, addition)
            return
        stored = turn.response["store"]
        changes = turn_changes(run.partition, turn, requires=run.id if again and stored else None, listed=stored)
        if stored:
            await apply_with(layers.store, changes, addition)
            await self._loader.cache_turn(owner, turn, changes[0].put[run.id])
        else:
            await layers.apply_in_memory(*changes)

    async def _load_shown(self, response_id: str, caller: Caller) -> Turn:
        return await load_images(self._store, caller.owner, await self._load(response_id, caller))

    async def _load(self, response_id: str, caller: Caller) -> Turn:
        partition = partition_of(caller.owner, response_id)
        record = await self._store.get(partition, response_id) if partition else None
        if partition is None or record is None:
            raise _not_found(response_id)
        turn = await read_records([record], Turn.of, record)
        if turn.response["status"] in TERMINAL:
            return turn
        # The response is running, has just ended, or its worker has died.
        if not await self._background.ended(RunKey(partition, response_id)):
            return turn
        record = await self._store.get(partition, response_id)
        if record is None:
            raise _not_found(response_id)
        return Turn.of(record)


def _run_key(response_id: str, owner: str) -> RunKey:
    partition = partition_of(owner, response_id)
    assert partition
    return RunKey(partition, response_id)


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
