"""
A question to a model, the same for all servers, and its encoding for one of them.

`TranslationState` is the state that the steps of one translation share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.core.profile import Profile, RequestOptions
from app.core.stream.event_types import ToolBinding
from app.core.types import JSONObject
from app.core.types.frozen import frozen
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedTools
from app.core.types.request import CreateResponse, Item
from app.errors import Warnings


@frozen
class EncodedQuestion:
    """A request as a server takes it, and the data that is needed to read its answer."""

    body: JSONObject  # not to be changed
    bindings: Mapping[str, ToolBinding]  # of the functions to their tools, by their names in the request
    allowed: frozenset[str] | None  # the functions that the model may call; None: any, tools or not
    warnings: tuple[str, ...]  # what was left out or changed, one sentence each
    profile: Profile | None = field(default=None, compare=False, repr=False)  # of the servers that take it


@dataclass(slots=True)
class Attempts:
    """Counts the requests to backends for one response; the backends update it."""

    answered_by: list[str] = field(default_factory=list)  # names of the backends that answered, in all rounds
    retries: int = 0  # requests that were sent again, to the same server or to another one
    queued: float = 0.0  # seconds of waiting for a free slot
    costs: list[int] = field(default_factory=list)  # of answers whose backend reported a cost, in nano-dollars
    broken_off: bool = False  # whether the last answer ended early, or with an error as its finish reason


@dataclass(slots=True)
class Question:
    """
    What a model is asked, and for whom; an API of model servers (`app.backends.apis`) encodes it for them.

    `items` is the whole conversation, oldest first, with the request's own input last and references resolved.
    `upstream` maps item ids to the fields that a backend sent for them (`{"reasoning_content": "..."}`,
    `{"extra_content": {...}}`); for a compaction item it is the decrypted `{"summary": "..."}`. Items without an entry
    are sent as they are. The last `later` items are the output of this response so far.

    Only `encoded` and `attempts` change after a question is created.
    """

    request: CreateResponse
    items: Sequence[Item]
    model: str  # as the caller named it
    upstream: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    hosted: HostedTools = NO_HOSTED_TOOLS  # the tools that this server runs itself
    later: int = 0
    strict: bool = False  # refuse unknown fields, and tools that cannot be offered, which are otherwise left out
    caller_key: str | None = None  # for backends that pass it through
    # Returns a key that is the same for all turns of a conversation: see `app.core.affinity`. Few servers need it.
    conversation: Callable[[], str] = str
    content_traceable: bool = False  # whether traces may have its content: never with `store: false`
    retry_allowed: bool = True  # at the same server; false if there is another one to try
    headers: Mapping[str, str] = field(default_factory=dict)  # additional ones, such as the trace context
    attempts: Attempts = field(default_factory=Attempts, compare=False)
    # Of images by URL, for models that accept no images. None: a note takes the place of such an image.
    descriptions: Mapping[str, str] | None = None
    # Set by the owner of the question, which encodes it once, for the first server that is asked.
    encoded: EncodedQuestion | None = field(default=None, compare=False, repr=False)

    def with_headers(self, added: Mapping[str, str]) -> Question:
        """Return the question with additional headers."""
        return replace(self, headers={**self.headers, **added})

    def without_oldest(self, items: Sequence[Item]) -> Question:
        """Return the question for fewer items of the conversation."""
        return replace(self, items=items, encoded=None)


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
