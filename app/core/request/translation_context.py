"""What the steps of one translation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.profile import Profile, RequestOptions
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
