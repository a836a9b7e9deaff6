"""What the steps of one translation share, and what is kept of it for the next one."""

from __future__ import annotations

from collections.abc import Mapping
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
    warnings: Warnings = field(default_factory=Warnings)

    @property
    def options(self) -> RequestOptions:
        """The profile's options for requests."""
        return self.profile.request


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
    size: int  # bytes of memory, by an estimate
    earlier: TranslatedPrefix | None = None  # for requests that this one does not fit
