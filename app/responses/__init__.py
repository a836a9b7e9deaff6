"""
Operations on responses.

`create` returns a `Run`, to be drained (JSON), encoded (SSE) or framed (WebSocket).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from app.backends import Backend
from app.core.history.context import RequestContext
from app.core.history.resource import new_response
from app.core.history.turns import Turn
from app.core.ids import new_id
from app.core.profile import Profile
from app.core.request import COST
from app.core.types.request import CreateResponse, Item
from app.errors import Warnings
from app.observability import log_context
from app.observability.lifecycle import NO_ACCOUNT, Delivery, Observer, ResponseAccount, ResponseLifecycle
from app.responses.background import Background
from app.responses.context import ContextLoader, HistoryCache
from app.responses.context.documents import PdfTexts
from app.responses.conversations import Conversations
from app.responses.encryption import ContentCipher
from app.responses.generate import Generation, OneAnswer
from app.responses.images.descriptions import ImageDescriber, Vision
from app.responses.policy import InputReview, PolicyHooks
from app.responses.policy.output import ReviewedGeneration
from app.responses.preparation import GenerationOptions, Preparation
from app.responses.quota import StorageQuota
from app.responses.run import Caller, Run
from app.responses.stored import StoredResponses
from app.responses.tool_loop import tool_loop_of
from app.responses.tool_loop.calls import Approvals
from app.stores import LayeredStore, Store
from app.tools import HostedTool

__all__ = ["Caller", "GenerationOptions", "Responses", "Run"]

logger = logging.getLogger(__name__)

_WARNINGS_LOGGED = 20  # per request; callers can cause any number


class Responses:
    """Each response is visible only to its owner."""

    def __init__(
        self,
        backend: Backend,
        store: Store,
        background: Background,
        options: GenerationOptions | None = None,
        *,
        cipher: ContentCipher | None = None,
        observers: Sequence[Observer] = (),
        tools: Mapping[str, HostedTool] | None = None,
    ) -> None:
        """`tools` are hosted tools by table name in the settings."""
        self.backend = backend
        self.store = store
        self.options = options or GenerationOptions()  # for new responses
        self.tools = tools or {}
        self.observers = observers
        self.policy: PolicyHooks | None = None  # reviews input and output
        self.vision: Vision | None = None  # describes images for text-only models
        self._cipher = cipher or ContentCipher()
        self.quota = StorageQuota(store, self.options.max_stored_bytes)
        self.conversations = Conversations(store, self._cipher, self.quota)
        self._layers = LayeredStore(None, store)
        files = next((tool.input_files for tool in self.tools.values() if tool.input_files), None)
        cache = HistoryCache(self.options.history_cache)
        self._loader = ContextLoader(self.conversations, self._cipher, cache, files)
        self.stored = StoredResponses(store, self._loader, background)
        self._pdfs = PdfTexts()

    def delete_expired(self) -> None:
        """Evict idle conversations from the cache."""
        self._loader.cache.delete_expired()

    async def create(
        self,
        request: CreateResponse,
        caller: Caller,
        *,
        generate: bool = True,
        delivery: Delivery | None = None,
        account: ResponseAccount = NO_ACCOUNT,
        observers: Sequence[Observer] = (),
        layers: LayeredStore | None = None,
    ) -> Run:
        """
        Prepare a response, without a backend request.

        `generate`: False only stores the input. `account` is charged. `observers` are added to the permanent ones.
        `layers`: the store with the memory of the caller's connection.

        Raises `InvalidRequest`, `TooManyRequests` beyond the owner's quota, and `StoreUnavailable` if the request needs
        an unavailable store.
        """
        if request.background or request.background_options:
            self.stored.check_background(request)
        request = self.options.with_prompt(request)
        layers = layers or self._layers
        context = await self._loader.context(request, caller.owner, layers)
        model = self.options.model(request, context, caller)
        profile = self.backend.profile(model)
        context = await self._with_pdfs(context, profile, caller)
        review = self.input_review(model, caller) if self.policy else None
        if review and (replaced := await review.request(request, context)):
            request = replaced
            context = await self._with_pdfs(await self._loader.context(request, caller.owner, layers), profile, caller)
        preparation = self.preparation(request, context, caller, model)
        all_observers = [*self.observers, *observers]
        if request.store and (reserved := await self.quota.reserve(caller.access, caller.owner, request.body_bytes)):
            all_observers.append(reserved)
        over_http: Delivery = "background" if request.background else "sse" if request.stream else "json"
        lifecycle = ResponseLifecycle(
            preparation.response,
            delivery or over_http,
            all_observers,
            account,
            attempts=preparation.attempts,
            shows_cost=COST in request.include,
            owner=caller.owner,
            key=caller.access.name,
        )
        if self.vision:
            preparation.images = ImageDescriber(self.vision, caller, lifecycle, request.store, review)
        generation = await self._generation(preparation, layers, lifecycle, review, generate=generate)
        if context.approved or context.denied:
            await Approvals(layers.store, caller.owner).decide(context.approved, context.denied)
        log_context.bind(response_id=preparation.response["id"], conversation_id=request.conversation)
        storage = self.stored.storage(preparation, layers, profile)
        for warning in [*context.warnings, *generation.warnings][:_WARNINGS_LOGGED]:
            logger.warning("dropped unsupported request field", extra={"reason": warning})
        return Run(context, caller, generation, storage, lifecycle)

    async def context(
        self, request: CreateResponse, caller: Caller, layers: LayeredStore | None = None
    ) -> RequestContext:
        """The conversation for the model; raises as `create`."""
        context = await self._loader.context(request, caller.owner, layers or self._layers)
        profile = self.backend.profile(self.options.model(request, context, caller))
        return await self._with_pdfs(context, profile, caller)

    async def stored_context(self, response_id: str, caller: Caller) -> tuple[Turn, RequestContext]:
        """A stored turn and its conversation; raises `NotFound`."""
        turns, context = await self._loader.stored(response_id, caller.owner, self._layers)
        profile = self.backend.profile(turns[-1].response["model"])
        return turns[-1], await self._with_pdfs(context, profile, caller)

    async def _with_pdfs(self, context: RequestContext, profile: Profile, caller: Caller) -> RequestContext:
        if profile.request.content.files == "pass":
            return context
        return await self._pdfs.add_to(context, caller.owner)

    async def _generation(
        self,
        preparation: Preparation,
        layers: LayeredStore,
        lifecycle: ResponseLifecycle,
        review: InputReview | None,
        *,
        generate: bool,
    ) -> Generation:
        request, context, options = preparation.request, preparation.context, preparation.options
        generate = generate and not (request.prompt_cache_options and request.prompt_cache_options.prewarm)
        policy = self.policy if generate and self.policy and self.policy.blocks_output else None
        builder = preparation.builder({**preparation.response, "output": []} if policy else None)
        loop = None
        if request.tools or request.context_management or context.approved:
            loop = tool_loop_of(preparation, builder, self.tools, layers, lifecycle, review, generate=generate)
        generation: Generation
        if loop:
            options.check_size(await loop.first_body())
            generation = loop
        elif generate:
            query = await preparation.query(builder)
            options.check_size(query.encoded.body)
            generation = OneAnswer(query, options.deadline())
        else:
            generation = Generation(builder)
        return ReviewedGeneration(generation, policy, preparation) if policy else generation

    def input_review(self, model: str, caller: Caller) -> InputReview | None:
        """None without a policy service."""
        policy = self.policy
        return InputReview(policy, model, caller.access.name) if policy and policy.reviews("input") else None

    async def reviewed_items(self, items: list[Item], caller: Caller) -> list[Item]:
        """
        Items for a conversation, perhaps replaced by the policy service.

        Raises `InvalidRequest`, `PolicyUnavailable`, and `NotFound` for a missing file.
        """
        review = self.input_review("", caller) if items else None
        if review is None:
            return items
        files = self._loader.files
        shown = await files.resolve(items, items, caller.owner, Warnings()) if files else items
        return await review.items(shown) or items

    def preparation(self, request: CreateResponse, context: RequestContext, caller: Caller, model: str) -> Preparation:
        response = new_response(request, new_id("resp", context.key), int(time.time()), model)
        return Preparation(request, caller, context, response, self.backend, self.options, self._cipher)
