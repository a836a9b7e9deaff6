"""
A question to a model, the same for all servers, and its encoding for one of them.

`TranslationState` is the state that the steps of one translation share, `TranslatedPrefix` the part of it that the
next translation starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.core.bounded_json import EncodedJSON
from app.core.profile import Profile, RequestOptions
from app.core.request.call_ids import CallIds
from app.core.request.roles import Message
from app.core.stream.event_types import ToolBinding
from app.core.types import JSONObject
from app.core.types.frozen import frozen
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedTools
from app.core.types.request import CreateResponse, Item
from app.errors import Warnings


@frozen
class TranslatedPrefix:
    """
    The messages of the first items of a conversation, which nothing that follows these items can change.

    With it, a request that continues the conversation need not translate them again: see `messages.can_continue`.
    """

    profile: Profile
    items: int  # how many they are
    messages: list[Message]  # not to be changed
    turn: int  # user messages among them
    with_tools: bool  # did the model call a tool since the last of these?
    before_user: bool  # must a user message follow?
    names: Mapping[tuple[str | None, str], str]  # of functions in namespaces, as the backend knows them
    ids: CallIds  # those of their calls
    encoded: bytes | None  # the messages as JSON, without the brackets; None if orjson cannot encode them
    size: int  # bytes of memory, by an estimate
    breakpoints: bool = False  # whether the caller's breakpoints of the prompt cache are kept
    earlier: TranslatedPrefix | None = None  # for requests that this one does not fit


@frozen
class EncodedQuestion:
    """A request as a server takes it, and the data that is needed to read its answer."""

    body: JSONObject  # not to be changed
    bindings: Mapping[str, ToolBinding]  # of the functions to their tools, by their names in the request
    allowed: frozenset[str] | None  # the functions that the model may call; None: any, tools or not
    warnings: tuple[str, ...]  # what was left out or changed, one sentence each
    prefix: TranslatedPrefix | None = None  # of shared items, for the next request of the conversation


@dataclass(slots=True)
class Attempts:
    """Counts the requests to backends for one response; the backends update it."""

    answered_by: list[str] = field(default_factory=list)  # names of the backends that answered, in all rounds
    retries: int = 0  # requests that were sent again, to the same server or to another one
    queued: float = 0.0  # seconds of waiting for a free slot
    broken_off: bool = False  # whether the last answer ended early, or with an error as its finish reason


@frozen
class Question:
    """
    What a model is asked, and for whom; an API of model servers (`app.backends.apis`) encodes it for them.

    `items` is the whole conversation, oldest first, with the request's own input last and references resolved.
    `upstream` maps item ids to the fields that a backend sent for them (`{"reasoning_content": "..."}`,
    `{"extra_content": {...}}`); for a compaction item it is the decrypted `{"summary": "..."}`. Items without an entry
    are sent as they are. The last `later` items are the output of this response so far.
    """

    request: CreateResponse
    items: Sequence[Item]
    model: str  # as the caller named it
    upstream: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    hosted: HostedTools = NO_HOSTED_TOOLS  # the tools that this server runs itself
    later: int = 0
    strict: bool = False  # refuse unknown fields, and tools that cannot be offered, which are otherwise left out
    # From earlier requests of the conversation, for several profiles; their items are not encoded again.
    prefixes: Sequence[TranslatedPrefix] = ()
    shared: int = 0  # so many of the first items are the same in all requests that continue from here

    caller_key: str | None = None  # for backends that pass it through
    # Returns a key that is the same for all turns of a conversation: see `app.core.affinity`. Few servers need it.
    conversation: Callable[[], str] = str
    content_traceable: bool = False  # whether traces may have its content: never with `store: false`
    retry_allowed: bool = True  # at the same server; false if there is another one to try
    headers: Mapping[str, str] = field(default_factory=dict)  # additional ones, such as the trace context
    attempts: Attempts = field(default_factory=Attempts, compare=False)
    # By profile, so that a question is encoded once for each.
    encodings: list[tuple[Profile, EncodedQuestion]] = field(default_factory=list, compare=False, repr=False)

    def with_headers(self, added: Mapping[str, str]) -> Question:
        """Return the question with additional headers."""
        return replace(self, headers={**self.headers, **added})

    def without_oldest(self, items: Sequence[Item]) -> Question:
        """Return the question for fewer items of the conversation."""
        return replace(self, items=items, prefixes=(), shared=0, encodings=[])


@frozen
class TranslationState:
    """The request being translated, the backend's profile, and the warnings that every step may add to."""

    request: CreateResponse
    profile: Profile
    upstream: Mapping[str, Mapping[str, object]]  # what backends sent for earlier items, by item id
    hosted: HostedTools  # the tools that the server runs itself
    strict: bool  # refuse what is otherwise left out with a warning
    options: RequestOptions  # the profile's
    warnings: Warnings = field(default_factory=Warnings)


class EncodedMessages(list[Message]):
    """Messages of which those from `start` to `stop` are there as JSON, too."""

    def __init__(self, messages: Iterable[Message], start: int, stop: int, encoded: bytes) -> None:
        """`encoded` is without brackets."""
        super().__init__(messages)
        self.start = start
        self.stop = stop
        self.encoded = encoded

    @property
    def others(self) -> list[Message]:
        """The messages that are not encoded."""
        return [*self[: self.start], *self[self.stop :]]

    @property
    def fragments(self) -> list[object]:
        """The messages with `EncodedJSON` for those that are encoded."""
        return [*self[: self.start], EncodedJSON(self.encoded), *self[self.stop :]]


def with_encoded(messages: list[Message], prefix: TranslatedPrefix | None) -> list[Message]:
    """Return messages in their final order with the JSON of those of a prefix, if these are among them as they are."""
    if prefix is None or not prefix.encoded or not prefix.messages:
        return messages
    first, last = prefix.messages[0], prefix.messages[-1]
    for start in (0, 1):  # there may be instructions before
        stop = start + len(prefix.messages)
        if len(messages) >= stop and messages[start] is first and messages[stop - 1] is last:
            return EncodedMessages(messages, start, stop, prefix.encoded)
    return messages
