"""
Activity endpoints: recent refusals, request durations, budgets, current state.

A key sees its own activity; an admin key sees all keys' activity, without content.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.accounting.listing import check_key_filter
from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import api_router, response_example
from app.api.pagination import Limit
from app.core.access import KeyAccess
from app.core.prices import NANO
from app.core.types import JSONObject
from app.errors import APIError, InvalidRequest
from app.observability.activity import HOUR, HOURS, SLOT, ActivityHour, RequestCounts
from app.responses import Caller
from app.tools import resources_of

_RESOURCES = 100  # listed containers and vector stores


def activity_routes(api: APIDependencies) -> APIRouter:
    router = api_router("antiphon", prefix="/antiphon")
    caller_of = api.caller_dependency()

    @router.get("/refusals", summary="List refused requests", openapi_extra=response_example("refusals"))
    async def refusals(
        limit: Limit = 100,
        status: str | None = Query(None, description="only refusals with this status, for example 429"),
        caller: Caller = caller_of,
    ) -> Response:
        return json_response(await _refusals(api, caller, limit, status))

    @router.get(
        "/latency",
        summary="Requests, errors and durations in the last hours",
        openapi_extra=response_example("latency"),
    )
    async def latency(
        hours: Annotated[int, Query(ge=1, le=HOURS)] = HOURS,
        minutes: Annotated[int, Query(ge=1, description="slot length: a multiple of 5 that divides 60")] = SLOT // 60,
        key: str | None = Query(None, description="glob for key names"),
        model: str | None = Query(None, description="glob for models"),
        caller: Caller = caller_of,
    ) -> Response:
        length = 60 * minutes
        if length % SLOT or HOUR % length:
            message = "Invalid 'minutes': must be a multiple of 5 that divides 60."
            raise InvalidRequest(message, param="minutes", code="invalid_value")
        check_key_filter(caller.access, key)
        found = await api.activity.hours(hours)
        query = hours, length, key or "*", model or "*"
        return json_response(await asyncio.to_thread(_summed, found, caller.access, *query))

    @router.get("/budgets", summary="List budgets and their use", openapi_extra=response_example("budgets"))
    async def budgets(caller: Caller = caller_of) -> Response:
        access = caller.access
        await api.accounting.wait_until_stored()
        of_keys = await api.accounting.budgets(await _limited(api) if access.admin else [access])
        data = [
            {
                "object": "antiphon.budget",
                "key": key.name,
                "limit": state.limit.name,
                "amount": _amount(state.limit.name, state.limit.amount),
                "used": _amount(state.limit.name, state.used),
                "resets_at": int(state.resets.timestamp()),
            }
            for key, states in of_keys
            for state in states
        ]
        return json_response({"object": "list", "data": data})

    @router.get(
        "/now",
        summary="Current state: running responses, backends, containers, vector stores",
        openapi_extra=response_example("now"),
    )
    async def now(caller: Caller = caller_of) -> Response:
        return json_response(await _now(api, caller))

    return router


async def _limited(api: APIDependencies) -> list[KeyAccess]:
    """All keys, and identities used this month."""
    accesses = api.auth.accesses()
    if api.auth.has_identities:
        names = await api.accounting.names_of_month()
        accesses += [api.auth.access_of(name) for name in sorted(names) if ":" in name]
    return accesses


async def _refusals(api: APIDependencies, caller: Caller, limit: int, status: str | None) -> JSONObject:
    hours = await api.activity.hours(HOURS)
    admin = caller.access.admin
    shown = [
        refusal
        for hour in hours
        for refusal in hour.refusals
        if (admin or refusal.owner == caller.owner) and status in (None, str(refusal.status))
    ]
    shown.sort(key=lambda refusal: refusal.at, reverse=True)
    data = []
    for refusal in shown[:limit]:
        fields = refusal._asdict()
        del fields["owner"]
        data.append({"object": "antiphon.refusal", **fields})
    return {"object": "list", "data": data, "has_more": len(shown) > limit}


def _summed(
    hours: Sequence[ActivityHour], access: KeyAccess, number: int, length: int, key: str, model: str
) -> JSONObject:
    slots: defaultdict[int, RequestCounts] = defaultdict(RequestCounts)
    keys: defaultdict[str, RequestCounts] = defaultdict(RequestCounts)
    models: defaultdict[str, RequestCounts] = defaultdict(RequestCounts)
    total = RequestCounts()
    for hour in hours:
        for (slot, name, its_model), counts in hour.counts.items():
            allowed = access.admin or name == access.name
            if allowed and fnmatchcase(name, key) and fnmatchcase(its_model, model):
                for sums in (slots[slot // length * length], keys[name], models[its_model], total):
                    sums.include(counts)
    return {
        "object": "antiphon.latency",
        "hours": number,
        "slot_seconds": length,
        "data": [{"start": start, **_shown(counts)} for start, counts in sorted(slots.items())],
        "keys": [{"key": name, **_shown(counts)} for name, counts in sorted(keys.items())],
        "models": [{"model": name, **_shown(counts)} for name, counts in sorted(models.items()) if name],
        "total": _shown(total),
    }


def _shown(counts: RequestCounts) -> JSONObject:
    return {
        "requests": counts.requests,
        "failed": counts.failed,
        "refused": counts.refused,
        **{
            name: {"median": durations.quantile(0.5), "p95": durations.quantile(0.95)}
            for name, durations in (("first_token", counts.first_token), ("total", counts.total))
        },
    }


def _amount(limit: str, amount: int) -> float:
    return amount / NANO if limit.startswith("money") else amount


async def _now(api: APIDependencies, caller: Caller) -> JSONObject:
    states, complete = await api.activity.now()
    containers, stores = [await _summaries(api, caller, name) for name in ("containers", "vector_stores")]
    running = sorted(
        (
            entry
            for state in states
            for entry in state["running"]
            if caller.access.admin or entry["owner"] == caller.owner
        ),
        key=lambda entry: entry["began"],
    )
    return {
        "object": "antiphon.now",
        "complete": complete and containers is not None and stores is not None,
        "backends": _backends((state["backends"] for state in states), caller.access),
        "running": [_own(entry, caller) for entry in running],
        "containers": containers or [],
        "vector_stores": stores or [],
    }


def _own(entry: Mapping[str, object], caller: Caller) -> JSONObject:
    """Replace the entry's owner with `own`: whether the caller is the owner."""
    fields = dict(entry)
    return {**fields, "own": fields.pop("owner") == caller.owner}


def _backends(states: Iterable[list[JSONObject]], access: KeyAccess) -> list[JSONObject]:
    """Sums processes' requests. Only admin keys see request counts and server URLs."""
    backends: dict[str, JSONObject] = {}
    for state in states:
        for backend in state:
            known = backends.setdefault(backend["name"], backend)
            if known is backend or len(known["replicas"]) != len(backend["replicas"]):
                continue  # the other process temporarily has other settings
            known["queued"] += backend["queued"]
            for replica, other in zip(known["replicas"], backend["replicas"], strict=True):
                replica["in_flight"] += other["in_flight"]
                replica["state"] = max(replica["state"], other["state"], key=["up", "down", "paused"].index)
    if access.admin:
        return [*backends.values()]
    return [
        {"name": name, "replicas": [{"state": replica["state"]} for replica in backend["replicas"]]}
        for name, backend in backends.items()
    ]


async def _summaries(api: APIDependencies, caller: Caller, resource: str) -> list[JSONObject] | None:
    """Containers or vector stores with sizes; [] if not configured, None if unavailable."""
    names: dict[str, list[str]] = {}
    for access in api.auth.accesses():
        names.setdefault(access.owner, []).append(access.name)
    found = resources_of(api.responses.tools).get(resource)
    if found is None:
        return []
    try:
        entries = await found.summaries(None if caller.access.admin else caller.owner, _RESOURCES)
    except APIError:  # already logged
        return None
    return [{**_own(entry, caller), "keys": names.get(str(entry["owner"]), [])} for entry in entries]
