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
SLOT = 300  # seconds
OTHER = "other"
_MAX_KEYS, _MODELS_OF_KEY = 200, 20  # per hour; further names, which callers can invent, become `other`
_MAX_COUNTS = 2000  # per hour; further names become `other`
_MAX_OWNERS, _REFUSALS_OF_OWNER = 50, 20  # a caller cannot evict other callers' refusals


class Refusal(NamedTuple):
    """A rejected request, without its content."""

    at: float  # Unix time
    owner: str
    key: str  # the key's name
    endpoint: str  # for example `POST /v1/responses`
    status: int
    type: str
    code: str | None
    param: str | None  # only for `POST /v1/responses`
    request_id: str


@dataclass(slots=True)
class RequestCounts:
    requests: int = 0  # sent to a model
    failed: int = 0  # included in `requests`
    refused: int = 0  # not included in `requests`
    first_token: Durations = field(default_factory=Durations)
    total: Durations = field(default_factory=Durations)

    def include(self, other: RequestCounts) -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.refused += other.refused
        self.first_token.include(other.first_token)
        self.total.include(other.total)


class ActivityHour:
    """A process's counts in an hour, by slot, key and model, and its last refusals."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.fresh = True  # whether it was never stored
        self.changed = False  # whether it differs from the stored record
        self.counts: dict[tuple[int, str, str], RequestCounts] = {}
        self._models: dict[str, set[str]] = {}  # model names by key
        self._refusals: dict[str, deque[Refusal]] = {}  # by owner, least recently refused first

    def of(self, now: float, key: str, model: str) -> RequestCounts:
        """Mutable counts at a Unix time in this hour."""
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
        """Beyond the limits, the oldest is evicted."""
        of_owner = self._refusals.pop(refusal.owner, None) or deque(maxlen=_REFUSALS_OF_OWNER)
        of_owner.append(refusal)
        self._refusals[refusal.owner] = of_owner
        if len(self._refusals) > _MAX_OWNERS:
            del self._refusals[next(iter(self._refusals))]

    @property
    def refusals(self) -> Iterator[Refusal]:
        return (refusal for of_owner in self._refusals.values() for refusal in of_owner)

    def record(self) -> bytes:
        counts = [
            [*name, each.requests, each.failed, each.refused, each.first_token.pairs(), each.total.pairs()]
            for name, each in self.counts.items()
        ]
        return dumps({"start": self.start, "counts": counts, "refusals": [[*each] for each in self.refusals]})

    @classmethod
    def read(cls, record: bytes) -> ActivityHour:
        fields: JSONObject = orjson.loads(record)
        hour = cls(fields["start"])
        for slot, key, model, requests, failed, refused, first, total in fields["counts"]:
            hour.counts[slot, key, model] = RequestCounts(requests, failed, refused, Durations(first), Durations(total))
        for refusal in fields["refusals"]:
            hour.refuse(Refusal(*refusal))
        return hour
