"""Lists usage, filtered and grouped: `GET /antiphon/usage`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

from app.core.access import KeyAccess
from app.core.prices import NANO
from app.errors import InvalidRequest, PermissionDenied, did_you_mean
from app.stores import UsageLedger, UsageRow, add_row

GROUPS = ("day", "month", "key", "model", "backend")
DEFAULT_GROUPS = "day,key,model"
_MAX_DAYS = 3660


class UsageQuery(NamedTuple):
    """`first` and `last` are days, `key` and `model` globs."""

    first: str
    last: str
    key: str | None
    model: str | None
    groups: Sequence[str]

    @classmethod
    def read(cls, first: str | None, last: str | None, key: str | None, model: str | None, group: str) -> UsageQuery:
        today = datetime.now(UTC).date()
        until = _date(last, "to") if last else today
        since = _date(first, "from") if first else until.replace(day=1)
        if not 0 <= (until - since).days <= _MAX_DAYS:
            message = f"Invalid 'from': must be a day before 'to', at most {_MAX_DAYS} days earlier."
            raise InvalidRequest(message, param="from", code="invalid_value")
        groups = [name.strip() for name in group.split(",") if name.strip()]
        for name in groups:
            if name not in GROUPS:
                hint = did_you_mean(name, GROUPS)
                message = f"Invalid 'group': must be one of {', '.join(GROUPS)}, not '{name[:50]}'.{hint}"
                raise InvalidRequest(message, param="group", code="invalid_value")
        return cls(since.isoformat(), until.isoformat(), key, model, groups)


def check_key_filter(access: KeyAccess, key: str | None) -> None:
    """Raises `PermissionDenied` for another key's usage."""
    if not access.admin and key not in (None, access.name):
        message = f"The key '{access.name}' can read only its own usage. Use an admin key (`admin = true`)."
        raise PermissionDenied(message, param="key")


async def list_usage(ledger: UsageLedger, query: UsageQuery, access: KeyAccess) -> dict[str, object]:
    """
    A key's own usage or, for an admin key, all usage.

    Raises `PermissionDenied` for another key's usage, and `StoreUnavailable`.
    """
    check_key_filter(access, query.key)
    rows = await ledger.rows(query.first, query.last, None if access.admin else access.name)
    groups: dict[tuple[str, ...], UsageRow] = {}
    for row in rows:
        if fnmatchcase(row.key, query.key or "*") and fnmatchcase(row.model, query.model or "*"):
            names = tuple(row.day[:7] if group == "month" else str(getattr(row, group)) for group in query.groups)
            add_row(groups, names, row)
    return {
        "object": "list",
        "from": query.first,
        "to": query.last,
        "data": [
            {"object": "antiphon.usage", **dict(zip(query.groups, names, strict=True)), **_counts([row])}
            for names, row in sorted(groups.items())
        ],
        "total": _counts([*groups.values()]),
    }


def _counts(rows: Sequence[UsageRow]) -> dict[str, int | float]:
    def total(name: str) -> int:
        return sum(getattr(row, name) for row in rows)

    return {
        "requests": total("requests"),
        "input_tokens": total("input_tokens"),
        "cached_input_tokens": total("cached_tokens"),
        "output_tokens": total("output_tokens"),
        "reasoning_tokens": total("reasoning_tokens"),
        "total_tokens": total("input_tokens") + total("output_tokens"),
        "cost": total("cost") / NANO,
    }


def _date(text: str, param: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        message = f"Invalid '{param}': must be a day, for example 2026-11-22, not '{text[:50]}'."
        raise InvalidRequest(message, param=param, code="invalid_value") from None
