"""The state that the steps of one translation share, and the part of it that the next translation starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from app.core.profile import Profile, RequestOptions
from app.core.request.call_ids import CallIds
from app.core.request.roles import Message
from app.core.types.hosted import HostedTools
from app.core.types.request import CreateResponse
from app.errors import Warnings


@dataclass(frozen=True, slots=True)
class TranslationContext:
    """The request being translated, the backend's profile, and the warnings that every step may add to."""

    request: CreateResponse
    profile: Profile
    upstream: Mapping[str, Mapping[str, object]]  # what backends sent for earlier items, by item id
    hosted: HostedTools  # the tools that the server runs itself
    strict: bool  # refuse what is otherwise left out with a warning
    options: RequestOptions  # the profile's
    warnings: Warnings = field(default_factory=Warnings)


@dataclass(frozen=True, slots=True)
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
    earlier: TranslatedPrefix | None = None  # for requests that this one does not fit


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

    def fragments(self, fragment: Callable[[bytes], object]) -> list[object]:
        """Return the messages with a fragment for those that are encoded: for orjson, or for `dumps_in_pieces`."""
        return [*self[: self.start], fragment(self.encoded), *self[self.stop :]]


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
