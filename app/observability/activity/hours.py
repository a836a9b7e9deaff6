"""What happened in one hour in one process: requests and their durations, and requests that were refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from app.core.bounded_json import dumps
from app.core.types import JSONObject
from app.observability.activity.durations import Durations

HOUR = 3600
SLOT = 300  # seconds, for which requests are counted together
OTHER = "other"
_MAX_KEYS, _MODELS_OF_KEY = 200, 20  # in an hour; the others are counted together, since callers may invent names
_MAX_COUNTS = 2000  # of an hour; then no further names get counts of their own
_MAX_OWNERS, _REFUSALS_OF_OWNER = 50, 20  # so that no caller's refusals displace those of others


class Refusal(NamedTuple):
    """A request that was refused, without any of its content."""

    at: float  # Unix time
    owner: str
    key: str  # its name
    endpoint: str  # such as `POST /v1/responses`
    status: int
    type: str
    code: str | None
    param: str | None  # the parameter of a request for a response
    request_id: str


@dataclass(slots=True)
class RequestCounts:
    """The requests of one key to one model in one slot."""

    requests: int = 0  # that a model was asked for
    failed: int = 0  # of these
    refused: int = 0  # beside these
    first_token: Durations = field(default_factory=Durations)
    total: Durations = field(default_factory=Durations)

    def include(self, other: RequestCounts) -> None:
        """Add the counts of other requests."""
        self.requests += other.requests
        self.failed += other.failed
        self.refused += other.refused
        self.first_token.include(other.first_token)
        self.total.include(other.total)


class ActivityHour:
    """The counts of an hour by slot, key and model, and its last refusals."""

    def __init__(self, start: int) -> None:
        """`start` is the Unix time of its beginning."""
        self.start = start
        self.fresh = True  # whether it has not been stored yet
        self.changed = False  # whether it has changed since it was stored
        self.counts: dict[tuple[int, str, str], RequestCounts] = {}
        self._models: dict[str, set[str]] = {}  # of each key
        self._refusals: dict[str, deque[Refusal]] = {}  # by owner, the last refused one last

    def of(self, now: float, key: str, model: str) -> RequestCounts:
        """Return the counts of a key and model at a Unix time of this hour, to be added to."""
        self.changed = True
        slot = int(now) // SLOT * SLOT
        if (counts := self.counts.get((slot, key, model))) is not None:
            return counts
        full = len(self.counts) >= _MAX_COUNTS
        if full or (key not in self._models and len(self._models) >= _MAX_KEYS):
            key = OTHER
        models = self._models.setdefault(key, set())
        if full or (model not in models and len(models) >= _MODELS_OF_KEY):
            model = OTHER
        models.add(model)
        return self.counts.setdefault((slot, key, model), RequestCounts())

    def refuse(self, refusal: Refusal) -> None:
        """Add a refusal, in place of the oldest one if there are too many."""
        of_owner = self._refusals.pop(refusal.owner, None) or deque(maxlen=_REFUSALS_OF_OWNER)
        of_owner.append(refusal)
        self._refusals[refusal.owner] = of_owner
        if len(self._refusals) > _MAX_OWNERS:
            del self._refusals[next(iter(self._refusals))]

    @property
    def refusals(self) -> Iterator[Refusal]:
        """The refusals, in any order."""
        return (refusal for of_owner in self._refusals.values() for refusal in of_owner)

    def record(self) -> bytes:
        """Return the hour as it is stored."""
        counts = [
            [*name, each.requests, each.failed, each.refused, each.first_token.pairs(), each.total.pairs()]
            for name, each in self.counts.items()
        ]
        return dumps({"start": self.start, "counts": counts, "refusals": [[*each] for each in self.refusals]})

    @classmethod
    def read(cls, record: bytes) -> ActivityHour:
        """Return the hour of a record."""
        fields: JSONObject = orjson.loads(record)
        hour = cls(fields["start"])
        for slot, key, model, requests, failed, refused, first, total in fields["counts"]:
            hour.counts[slot, key, model] = RequestCounts(requests, failed, refused, Durations(first), Durations(total))
        for refusal in fields["refusals"]:
            hour.refuse(Refusal(*refusal))
        return hour
