"""
The operations on responses: create, retrieve, list the input items, delete, cancel, and compact.

A response is created in two steps. `create` validates and translates the request and returns a `Run`. The run is then
drained (JSON), encoded (SSE) or framed (WebSocket).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from app.backends import Backend, TokenCounter
from app.core.access import hosted_names
from app.core.history import turns
from app.core.history.context import Context
from app.core.history.turns import Turn
from app.core.prompt_template import PromptLibrary
from app.core.request import FRAMEWORK_EVENTS, known_extra_parameters
from app.core.stream.citations import noted_sources
from app.core.stream.event_builder import EventBuilder
from app.core.types.ids import bucket_of, new_id
from app.core.types.request import TERMINAL, CreateResponse, Item, Response
from app.core.types.response import new_response
from app.core.types.token_estimate import estimate_chat
from app.errors import InvalidRequest, NotFound
from app.observability import log_context
from app.observability.lifecycle import Observer, ResponseLifecycle, Transport
from app.responses.background import Background, EventSubscription
from app.responses.background.worker import SaveTurn
from app.responses.compaction import CompactionBuilder, CompactionOptions, CompactResponse
from app.responses.context import ContextLoader, InputFileSource
from app.responses.context.cache import HISTORY_CACHE, HistoryCache
from app.responses.context.documents import PdfTexts
from app.responses.conversations import Conversations
from app.responses.encryption import ContentCipher, EncryptingEventBuilder
from app.responses.generate import Deadline, Generation, NoAnswer, OneAnswer
from app.responses.images import StoredImages, load_images, turn_changes
from app.responses.off_loop import are_large, off_loop
from app.responses.questions import Questions
from app.responses.run import Caller, Run, Storage
from app.responses.tool_loop import ToolLoop
from app.responses.tool_loop.approvals import Approvals
from app.responses.tool_loop.options import LoopOptions, loop_options
from app.responses.tool_loop.sessions import DeclaredTool, open_tool
from app.stores import Change, Store, apply_with, images_bucket
from app.stores.event_log import RunKey
from app.stores.layered import LayeredStore
from app.tools import Declaration, DeclaringTool, HostedTool, ToolLimits

__all__ = ["Caller", "Responses", "Run", "allowed_models", "find_model"]

logger = logging.getLogger(__name__)

_WARNINGS_LOGGED = 20  # per request; callers can cause any number of warnings


# Required fields of declarations besides `type`, for tools that need no ids of the caller's.
_REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "web_search": {},
    "image_generation": {},
    "code_interpreter": {"container": {"type": "auto"}},
    "shell": {"environment": {"type": "container_auto"}},
}


class Responses:
    """The responses of all callers; each is visible only to its owner."""

    def __init__(
        self,
        backend: Backend,
        store: Store,
        *,
        seals: ContentCipher | None = None,
        background: Background | None = None,
        prompts: PromptLibrary | None = None,
        compaction_prompt: str = "",
        compact_threshold: int = 100_000,
        reasoning: Literal["auto", "content", "summary", "both"] = "auto",
        strict: bool = False,
        default_model: str | None = None,
        observers: Sequence[Observer] = (),
        max_input_tokens: int = 0,
        max_output_seconds: float = 0,
        files: InputFileSource | None = None,
        history_cache: int = HISTORY_CACHE,
        tools: Mapping[str, HostedTool] | None = None,
        tool_limits: ToolLimits | None = None,
    ) -> None:
        """`tools` are the hosted tools, by the names of their tables in the settings."""
        self.backend = backend
        self.store = store
        self.seals = seals or ContentCipher()
        self.conversations = Conversations(store, self.seals)
        self._layers = LayeredStore(None, store)
        self._loader = ContextLoader(self.conversations, self.seals, HistoryCache(history_cache), files)
        self._background = background
        self._compaction_prompt = compaction_prompt
        self._prompts = prompts or PromptLibrary()
        self._compact_threshold = compact_threshold
        self._reasoning = reasoning
        self._strict = strict
        self._pdfs = PdfTexts()
        self._default_model = default_model
        self._observers = observers
        self._max_input_tokens = max_input_tokens
        self._max_output_seconds = max_output_seconds
        self._tools = tools or {}
        self._tool_limits = tool_limits or ToolLimits()

    @property
    def observers(self) -> Sequence[Observer]:
        """The observers of all responses."""
        return self._observers

    @property
    def default_model(self) -> str | None:
        """The model of requests without one."""
        return self._default_model

    @property
    def max_output_seconds(self) -> float:
        """The limit for generating an answer, in seconds; 0: none."""
        return self._max_output_seconds

    @property
    def has_background(self) -> bool:
        """Whether responses can run in the background."""
        return self._background is not None

    def purge(self) -> None:
        """Remove conversations from the cache that were not continued for some minutes."""
        self._loader.cache.purge()

    def replace_limits(self, *, max_input_tokens: int, max_output_seconds: float) -> None:
        """Change the limits of responses that are created from now on."""
        self._max_input_tokens = max_input_tokens
        self._max_output_seconds = max_output_seconds

    def is_hosted(self, type: str) -> bool:
        """Return whether a hosted tool of this server serves declarations of a type."""
        return any(type in tool.types for tool in self._tools.values())

    def offered_tools(self, caller: Caller) -> list[dict[str, Any]]:
        """Return declarations of the hosted tools that a caller may use, without secrets."""
        offered: list[dict[str, Any]] = []
        for name, tool in self._tools.items():
            if isinstance(tool, DeclaringTool):
                declared = [*map(dict, tool.declarations(caller.key_names))]
            else:
                declared = [
                    {"type": type_, **needed} for type_, needed in _REQUIRED_FIELDS.items() if type_ in tool.types
                ]
            offered += [entry for entry in declared if caller.access.allows_tool(*hosted_names(entry, name))]
        return offered

    async def create(
        self,
        request: CreateResponse,
        caller: Caller,
        *,
        generate: bool = True,
        transport: Transport | None = None,
        observers: Sequence[Observer] = (),
        layers: LayeredStore | None = None,
    ) -> Run:
        """
        Prepare a response; no request to the backend has been sent when this returns.

        `generate`: whether a model answers; if not, the response only has its input, and can be continued from.
        `transport`: by default the HTTP transport that the request names. `observers` are notified of the lifecycle, in
        addition to those of all responses. `layers`: the store with the memory of the caller's connection, if any.

        Raises `InvalidRequest` and its subclasses for an invalid request, and `StoreUnavailable` if the request needs
        the store while it is unavailable.
        """
        self._check_background(request)
        request = self.with_prompt(request)
        layers = layers or self._layers
        context = await self.context(request, caller, layers)
        response = self._response(request, caller, context)
        lifecycle = ResponseLifecycle(response, transport or _http_transport(request), [*self._observers, *observers])
        questions = self.questions(request, context, caller, response["model"])
        generation = await self._generation(request, caller, context, lifecycle, layers, questions, generate=generate)
        log_context.bind(response_id=response["id"], conversation_id=request.conversation)
        storage = await off_loop(questions.large, self._storage, request, caller, context, response, layers)
        run = Run(context, caller, generation, storage, lifecycle)
        for warning in run.warnings[:_WARNINGS_LOGGED]:
            logger.warning("request adapted", extra={"reason": warning})
        return run

    async def context(self, request: CreateResponse, caller: Caller, layers: LayeredStore | None = None) -> Context:
        """Return the conversation of a request, as the model is sent it; raises as `create`."""
        context = await self._loader.context(request, caller.owner, layers or self._layers)
        return await self._with_pdfs(context, self.model(request, context, caller))

    async def stored_turns(self, response_id: str, caller: Caller) -> list[Turn]:
        """Return the turns up to a stored response, oldest first; raises `NotFound`, also if one is missing."""
        turns, _ = await self._loader.stored(response_id, caller.owner, self._layers)
        return [await load_images(self.store, caller.owner, turn) for turn in turns]

    async def stored_context(self, response_id: str, caller: Caller) -> tuple[Turn, Context]:
        """Return the turn of a stored response, and the conversation of its request; raises as `stored_turns`."""
        turns, context = await self._loader.stored(response_id, caller.owner, self._layers)
        return turns[-1], await self._with_pdfs(context, turns[-1].response["model"])

    async def _with_pdfs(self, context: Context, model: str) -> Context:
        """Return a context with the text of PDF files, if the backend of a model takes no files."""
        return await self._pdfs.add_to(context, self.backend.profile(model))

    def _response(self, request: CreateResponse, caller: Caller, context: Context) -> Response:
        """Return the resource of a new response."""
        response = new_response(
            request,
            id=new_id("resp", context.key),
            created_at=int(time.time()),
            model=self.model(request, context, caller),
            store=request.store,
            schema=caller.dialect.schema,
        )
        if request.conversation:
            response["conversation"] = {"id": request.conversation}
        if request.prompt:
            response["prompt"] = request.prompt.model_dump()
        return response

    def with_prompt(self, request: CreateResponse) -> CreateResponse:
        """
        Return a request with the instructions of its prompt template before its own.

        Raises `NotFound` for an unknown template, and `InvalidRequest` for wrong variables.
        """
        prompt = request.prompt
        if prompt is None:
            return request
        template = self._prompts.find(prompt.id, prompt.version)
        texts = [template.render(prompt.variables or {}), request.instructions]
        return request.model_copy(
            update={
                "instructions": "\n\n".join(text for text in texts if text),
                "model": request.model or template.model,
                "prompt": prompt.model_copy(update={"version": template.version}),
            }
        )

    def replace_prompts(self, prompts: PromptLibrary) -> None:
        """Use these prompt templates for the responses that are created from now on."""
        self._prompts = prompts

    async def _generation(
        self,
        request: CreateResponse,
        caller: Caller,
        context: Context,
        lifecycle: ResponseLifecycle,
        layers: LayeredStore,
        questions: Questions,
        *,
        generate: bool,
    ) -> Generation:
        """Translate a request, and return the generation of its response."""
        response = lifecycle.response
        builder = self._builder(request, caller, context, response)
        generate = generate and not (request.prompt_cache_options and request.prompt_cache_options.prewarm)
        lifecycle.answered_by = questions.answered_by
        if options := self._loop_options(request, caller, context, response, layers, generate=generate):
            loop = ToolLoop(builder, questions, options, deadline=self._deadline(), lifecycle=lifecycle)
            await off_loop(questions.large, lambda: self.check_size(loop.first_body()))
            self._loader.cache_prefix(request, caller.owner, questions.prefix)
            return loop
        if not generate:
            return NoAnswer(builder)
        question = await off_loop(questions.large, questions.first, builder)
        self._loader.cache_prefix(request, caller.owner, questions.prefix)
        await off_loop(questions.large, self.check_size, question.request.body)
        return OneAnswer(builder, question, self._deadline())

    def questions(self, request: CreateResponse, context: Context, caller: Caller, model: str) -> Questions:
        """Return the factory of a request's questions to the backend."""
        return Questions(request, context, caller.key, self.backend, model, self._compaction_prompt, self._strict)

    def _deadline(self) -> Deadline | None:
        return Deadline(self._max_output_seconds) if self._max_output_seconds else None

    def _loop_options(
        self,
        request: CreateResponse,
        caller: Caller,
        context: Context,
        response: Response,
        layers: LayeredStore,
        *,
        generate: bool,
    ) -> LoopOptions | None:
        """Return the options of the tool loop; None if the response is a single answer. Raises `InvalidRequest`."""
        declared = self._declared(request, caller, context, response) if generate else []
        if context.approvals and not declared:
            message = "The tools whose calls are approved have to be among the request's 'tools' again."
            raise InvalidRequest(message, param="tools")
        compacting = self._compaction(request, caller) if generate and not context.compacts else None
        if not declared and not compacting:
            return None
        approvals = Approvals(self.store, caller.owner)
        images = StoredImages(layers, caller.owner, context.images)
        limits = self._tool_limits
        return loop_options(request, context, declared, limits, caller.dialect, approvals, images, compacting)

    def _declared(
        self, request: CreateResponse, caller: Caller, context: Context, response: Response
    ) -> list[DeclaredTool]:
        """Return the declarations that hosted tools serve; raises `InvalidRequest` for an invalid one."""
        declared: list[DeclaredTool] = []
        if context.compacts or not self._tools:
            return declared
        for position, tool in enumerate(request.tools):
            declaration = Declaration(
                tool=tool,
                secrets=request.tool_secrets.restore(tool),
                place=f"tools[{position}]",
                owner=caller.owner,
                response_id=response["id"],
                chain=context.key,
                include=frozenset(request.include),
                key_names=caller.key_names,
            )
            if opened := open_tool(self._tools, declaration, position):
                names = hosted_names(tool, opened.name)
                caller.access.check_tool(*names, param=f"{declaration.place}.type")
                declared.append(opened)
        return declared

    def _compaction(self, request: CreateResponse, caller: Caller) -> CompactionOptions | None:
        """Return when to compact the conversation within the response; None if the request does not configure it."""
        if not request.context_management:
            return None
        thresholds = (entry.compact_threshold or self._compact_threshold for entry in request.context_management)
        return CompactionOptions(min(thresholds), partial(self.seals.seal, "compaction", caller.owner))

    def _storage(
        self, request: CreateResponse, caller: Caller, context: Context, response: Response, layers: LayeredStore
    ) -> Storage | None:
        """Return how a response is stored when it ends; None if it is not stored."""
        if not request.store and layers.memory is None:
            return None
        save: SaveTurn = partial(self._save, caller, layers)
        if request.background and self._background:
            save = partial(self._background.save, _run_key(response["id"], caller))
        input = [turns.input_item(item, context.key) for item in context.new]
        recorded = turns.recorded_request(
            request, known_extra_parameters(self.backend.profile(response["model"]).request)
        )

        addition = partial(self.conversations.addition, request, caller.owner)
        return Storage(save, addition, input, recorded)

    async def compact(self, request: CompactResponse, caller: Caller, observers: Sequence[Observer] = ()) -> Run:
        """Prepare a compaction that is returned to the caller and not stored: see `Run.compacted`."""
        return await self.create(request.triggering(), caller, observers=observers)

    async def count_tokens(self, request: CreateResponse, caller: Caller) -> tuple[int, bool]:
        """Return the number of input tokens of a request, and whether the backend has counted them."""
        request = self.with_prompt(request)
        unstored = request.model_copy(update={"store": False})  # so the store need not be writable
        context = await self.context(unstored, caller)
        model = self.model(request, context, caller)
        questions = self.questions(request, context, caller, model)
        chat, _ = await off_loop(questions.large, questions.first_request)
        if isinstance(self.backend, TokenCounter):
            count = await self.backend.count_tokens(chat)
            if count is not None:
                return count, True
        return await off_loop(chat.large, estimate_chat, chat.body), False

    async def launch(self, run: Run) -> Response:
        """Start a run with `background: true` as a task; returns the queued response."""
        assert self._background
        return await self._background.launch(run)

    async def retrieve(self, response_id: str, caller: Caller) -> Response:
        """Return a stored response; raises `NotFound`."""
        return (await self._load_shown(response_id, caller)).response

    async def follow(self, response_id: str, caller: Caller, after: int = -1) -> EventSubscription:
        """
        Return the events of a background response after a sequence number, whether it is running or has ended.

        Raises `NotFound`, and `InvalidRequest` if its events are not stored.
        """
        response = (await self._load(response_id, caller)).response
        if self._background is None or not response["background"]:
            raise InvalidRequest("Only responses created with `background: true` can be streamed.", param="stream")
        subscription = await self._background.follow(_run_key(response_id, caller), after)
        if subscription is None:
            raise InvalidRequest(
                "The events of this response are no longer stored. Retrieve it without `stream`.", param="stream"
            )
        return subscription

    async def input_items(self, response_id: str, caller: Caller) -> list[Item]:
        """Return the input items of a stored response, of its own turn, oldest first; raises `NotFound`."""
        return (await self._load_shown(response_id, caller)).input

    async def delete(self, response_id: str, caller: Caller) -> None:
        """Delete a stored response; responses that continue from it cannot be continued any more. Raises `NotFound`."""
        bucket = bucket_of(caller.owner, response_id)
        deleted = bucket is not None and await self.store.apply(
            Change(bucket, {}, delete=[response_id], requires=response_id),
            Change(images_bucket(bucket), {}, delete=[response_id]),
        )
        self._loader.cache.remove_with(caller.owner, response_id)
        if bucket and self._background:  # last: a process that ends the run of a dead worker checks the response first
            await self._background.delete(RunKey(bucket, response_id))
        if not deleted:
            raise _not_found(response_id)

    async def cancel(self, response_id: str, caller: Caller) -> Response:
        """
        Cancel a background response and return it; one that has ended is returned unchanged.

        Raises `NotFound`, and `InvalidRequest` for a response that was not created in the background.
        """
        response = await self.retrieve(response_id, caller)
        if not response["background"]:
            message = "Cannot cancel a synchronous response. Only one created with `background: true` can be cancelled."
            raise InvalidRequest(message)
        if response["status"] in TERMINAL or self._background is None:
            return response
        await self._background.cancel(_run_key(response_id, caller))
        return await self.retrieve(response_id, caller)

    async def _save(
        self, caller: Caller, layers: LayeredStore, turn: Turn, addition: Sequence[Change], *, again: bool
    ) -> None:
        """
        Store a turn with its addition to a conversation, or in the memory of its connection.

        It can be continued from when this returns. Deleted objects stay deleted: a turn that may have been stored
        before (`again`) is only replaced, and a deleted conversation is not added to.
        """
        id = turn.response["id"]
        bucket = bucket_of(caller.owner, id)
        assert bucket
        stored = turn.response["store"]
        requires = id if again and stored else None
        changes = await turn_changes(bucket, turn, requires=requires, listed=stored)
        if stored:
            await apply_with(layers.store, changes, addition)
            await self._loader.cache_turn(caller.owner, turn, changes[0].put[id])
        else:
            await layers.remember(*changes)

    async def _load_shown(self, response_id: str, caller: Caller) -> Turn:
        """Return a stored turn with its images; raises `NotFound`."""
        return await load_images(self.store, caller.owner, await self._load(response_id, caller))

    async def _load(self, response_id: str, caller: Caller) -> Turn:
        bucket = bucket_of(caller.owner, response_id)
        record = await self.store.get(bucket, response_id) if bucket else None
        if bucket is None or record is None:
            raise _not_found(response_id)
        turn = await off_loop(are_large([record]), Turn.of, record)
        if turn.response["status"] in TERMINAL or self._background is None:
            return turn
        # It should be running; otherwise it has just ended, or its worker has died.
        if not await self._background.ended(RunKey(bucket, response_id)):
            return turn
        record = await self.store.get(bucket, response_id)
        if record is None:
            raise _not_found(response_id)
        return Turn.of(record)

    def check_size(self, body: dict[str, Any]) -> None:
        """Raise `InvalidRequest` if the prompt of a Chat Completions request exceeds this server's limit."""
        if not self._max_input_tokens or (tokens := estimate_chat(body)) <= self._max_input_tokens:
            return
        message = f"The input is about {tokens} tokens long, and this server takes {self._max_input_tokens}."
        raise InvalidRequest(message, param="input", code="context_length_exceeded")

    def _check_background(self, request: CreateResponse) -> None:
        if request.background and not request.store:
            raise InvalidRequest("Background responses have to be stored: leave out `store`.", param="background")
        if request.background and self._background is None:
            raise InvalidRequest("This server has no background responses.", param="background")

    def model(self, request: CreateResponse, context: Context, caller: Caller) -> str:
        """
        Return the model of a request.

        Raises `InvalidRequest` if there is none, and `PermissionDenied` if the caller's key may not use it.
        """
        model = request.model or context.model or self._default_model
        if not model:
            raise InvalidRequest("'model' is required.", param="model", code="missing_required_parameter")
        caller.access.check_model(model)
        return model

    def _builder(self, request: CreateResponse, caller: Caller, context: Context, response: Response) -> EventBuilder:
        """Return the builder of a response's events."""
        builder = self._new_builder(request, caller, context, response)
        builder.framework_events = FRAMEWORK_EVENTS in request.include
        if sources := noted_sources(context.upstream):
            builder.cite(sources)
        return builder

    def _new_builder(
        self, request: CreateResponse, caller: Caller, context: Context, response: Response
    ) -> EventBuilder:
        def make_id(prefix: str) -> str:
            return new_id(prefix, context.key)

        if context.compacts:
            seal = partial(self.seals.seal, "compaction", caller.owner)
            return CompactionBuilder(response, new_id=make_id, seal=seal)
        shown = caller.dialect.reasoning(self._shown(request))
        if "reasoning.encrypted_content" in request.include:
            seal = partial(self.seals.seal, "reasoning", caller.owner)
            return EncryptingEventBuilder(response, new_id=make_id, reasoning=shown, seal=seal)
        return EventBuilder(response, new_id=make_id, reasoning=shown)

    def _shown(self, request: CreateResponse) -> str:
        """Return how to show raw reasoning: as a summary if the caller requests one, else as content."""
        if self._reasoning != "auto":
            return self._reasoning
        return "summary" if request.reasoning and request.reasoning.summary else "content"


async def allowed_models(backend: Backend, caller: Caller) -> list[dict[str, Any]]:
    """Return the models of the backend's list that the caller's key may use."""
    models = await backend.models(caller.key)
    return [model for model in models if caller.access.allows_model(str(model["id"]))]


async def find_model(backend: Backend, name: str, caller: Caller) -> dict[str, Any]:
    """Return a model of the backend's list; raises `NotFound`."""
    for model in await allowed_models(backend, caller):
        if model["id"] == name:
            return model
    raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")


def _http_transport(request: CreateResponse) -> Transport:
    return "background" if request.background else "sse" if request.stream else "json"


def _run_key(response_id: str, caller: Caller) -> RunKey:
    bucket = bucket_of(caller.owner, response_id)
    assert bucket
    return RunKey(bucket, response_id)


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
