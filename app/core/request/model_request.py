"""A server-independent request to a model, and its encoding for a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from app.core.profile import Profile, RequestOptions
from app.core.stream.event_types import ToolBinding
from app.core.types import JSONObject, frozen
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedTools
from app.core.types.request import CreateResponse, Item
from app.errors import Warnings


@frozen
class EncodedRequest:
    body: JSONObject  # must not be modified
    bindings: Mapping[str, ToolBinding]  # by function name in the request
    allowed: frozenset[str] | None  # None: any, even undeclared functions
    warnings: tuple[str, ...]  # a sentence for each omission or change
    profile: Profile | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Attempts:
    answered_by: list[str] = field(default_factory=list)
    retries: int = 0  # to the same or another server
    queued: float = 0.0  # seconds of waiting for a free slot
    costs: list[int] = field(default_factory=list)  # reported by backends, in nano-dollars
    broken_off: bool = False  # the last answer broke off, or ended with an error


@dataclass(slots=True)
class ModelRequest:
    """
    A query to a model, for any server.

    `items` is the whole conversation, oldest first. `upstream` maps item ids to backend fields (`{"reasoning_content":
    "..."}`, `{"extra_content": {...}}`), or for a compaction item to the decrypted `{"summary": "..."}`. The last
    `later` items are this response's output so far.

    Only `encoded` and `attempts` change after creation.
    """

    request: CreateResponse
    items: Sequence[Item]
    model: str  # as named by the caller
    upstream: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    hosted: HostedTools = NO_HOSTED_TOOLS
    later: int = 0
    strict: bool = False  # reject unknown fields and impossible tools, instead of omitting them
    caller_key: str | None = None  # for backends to which it is forwarded
    # The conversation's key (`app.core.affinity`), for the few servers that need it.
    conversation: Callable[[], str] = str
    backend: str | None = None  # name in the settings; None: chosen by the model
    may_trace_content: bool = False  # traces may contain its content: never with `store: false`
    retry_allowed: bool = True  # at the same server; false if another server remains to be tried
    headers: Mapping[str, str] = field(default_factory=dict)
    attempts: Attempts = field(default_factory=Attempts, compare=False)
    # By URL, for models without image input. None: a note replaces each image.
    descriptions: Mapping[str, str] | None = None
    # Encoded once, for the first server.
    encoded: EncodedRequest | None = field(default=None, compare=False, repr=False)

    @property
    def input_start(self) -> int:
        """The index in `items` of the request's first input item; 0 after truncation."""
        count = len(self.request.input) if isinstance(self.request.input, list) else 1
        return max(0, len(self.items) - self.later - count)

    def without_oldest(self, items: Sequence[Item]) -> ModelRequest:
        return replace(self, items=items, encoded=None)


class TranslationState:
    """A model request, with an API's options and the warnings about its translation."""

    __slots__ = (
        *("cached", "extra", "given", "hosted", "model_request", "options", "profile", "request"),
        *("upstream", "warnings"),
    )

    def __init__(
        self,
        model_request: ModelRequest,
        profile: Profile,
        options: RequestOptions,
        hosted: HostedTools | None = None,
        *,
        cached: bool = False,
    ) -> None:
        """
        `options` and `hosted` are the profile's and the model request's, adjusted by the API.

        `cached`: prompt cache breakpoints are sent.
        """
        request = model_request.request
        self.model_request = model_request
        self.request: CreateResponse = request
        self.profile = profile
        self.options = options
        self.upstream = model_request.upstream
        self.hosted = hosted or model_request.hosted
        self.cached = cached
        self.given: Set[str] = request.__pydantic_fields_set__  # fields that the caller set
        self.extra: Mapping[str, Any] = request.__pydantic_extra__ or {}  # fields without a declaration
        self.warnings = Warnings()
