"""Lists usage, filtered and grouped: `GET /antiphon/usage`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase

from app.core.access import KeyAccess
from app.core.prices import NANO
from app.errors import InvalidRequest, PermissionDenied, did_you_mean
from app.stores import UsageLedger, UsageRow, add_row

GROUPS = ("day", "month", "key", "model", "backend")
DEFAULT_GROUPS = "day,key,model"
_MAX_DAYS = 3660


def check_key_filter(access: KeyAccess, key: str | None) -> None:
    """Raises `PermissionDenied` for another key's usage."""
    if not access.admin and key not in (None, access.name):
        message = f"The key '{access.name}' can read only its own usage. Use an admin key (`admin = true`)."
        raise PermissionDenied(message, param="key")


async def list_usage(
    ledger: UsageLedger,
    access: KeyAccess,
    *,
    first: str | None,
    last: str | None,
    key: str | None,
    model: str | None,
    group: str,
) -> dict[str, object]:
    """
    A key's own usage or, for an admin key, all usage.

    `first` and `last` are days, by default the first of the month and today; `key` and `model` are globs; `group` is
    a comma-separated list of `GROUPS`.

    Raises `InvalidRequest`, `PermissionDenied` for another key's usage, and `StoreUnavailable`.
    """
    until = _date(last, "to") if last else datetime.now(UTC).date()
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
    check_key_filter(access, key)
    totals: dict[tuple[str, ...], UsageRow] = {}
    for row in await ledger.rows(since.isoformat(), until.isoformat(), None if access.admin else access.name):
        if fnmatchcase(row.key, key or "*") and fnmatchcase(row.model, model or "*"):
            names = tuple(row.day[:7] if name == "month" else str(getattr(row, name)) for name in groups)
            add_row(totals, names, row)
    return {
        "object": "list",
        "from": since.isoformat(),
        "to": until.isoformat(),
        "data": [
            {"object": "antiphon.usage", **dict(zip(groups, names, strict=True)), **_counts([row])}
            for names, row in sorted(totals.items())
        ],
        "total": _counts([*totals.values()]),
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
