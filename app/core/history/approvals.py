"""Find the calls that a request approves or denies, and earlier runs of these calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.core.history.turns import Turn
from app.core.items import ITEM_TYPES
from app.core.items.readings import NOTES
from app.core.stream.event_builder import Upstream
from app.core.types.request import Item
from app.errors import InvalidRequest

MAX_APPROVED = 128  # per request
MAX_DENIED = 128  # per request, the last ones; earlier denials were stored when new

APPROVAL_REQUEST, APPROVAL_RESPONSE = "mcp_approval_request", "mcp_approval_response"


class ApprovedCall(NamedTuple):
    request: Item  # in its stored form if stored
    path: str  # in the request, for example `input[1]`
    call_id: str | None  # the backend's id
    earlier: tuple[Item, Upstream] | None = None


def has_approval_responses(items: Iterable[Item]) -> bool:
    return any(item["type"] == APPROVAL_RESPONSE for item in items)


def find_decisions(
    stored: Sequence[Item], new: Sequence[Item], upstream: Mapping[str, Upstream], turns: Sequence[Turn]
) -> tuple[list[ApprovedCall], list[tuple[str, str]]]:
    """
    Approved calls that are not in the conversation, and denied calls: approval request ids, and each denial's path.

    A call that could not be started runs again if approved again. `turns` are all stored turns in the chains, including
    siblings. Raises `InvalidRequest` for an invalid answer, or for an approval after a denial.
    """
    requests = _requests(stored, new, turns)
    begun = {
        approved_id
        for item in (*stored, *new)
        if (approved_id := _approved_by(item, upstream)) and _was_begun(item, upstream)
    }
    # Includes calls that could not be started.
    attempted = {approved_id for item in stored if (approved_id := _approved_by(item, upstream))}
    # In all turns, so also in siblings.
    earlier = {
        approved_id: (item, turn.upstream.get(str(item.get("id")), {}))
        for turn in turns
        for item in turn.response["output"]
        if (approved_id := _approved_by(item, turn.upstream)) and _was_begun(item, turn.upstream)
    }
    answers = itertools.chain(stored, *(turn.input for turn in turns))
    denied_before = {
        str(item.get("approval_request_id"))
        for item in answers
        if item["type"] == APPROVAL_RESPONSE and item.get("approve") is False
    }
    approved: dict[str, ApprovedCall] = {}
    denied: dict[str, str] = {}
    for index, item in enumerate(new):
        if approved_id := _approved_by(item, upstream):
            approved.pop(approved_id, None)  # the approval resulted in this call
            attempted.add(approved_id)
        if item["type"] != APPROVAL_RESPONSE:
            continue
        path, request_id, approve = f"input[{index}]", item.get("approval_request_id"), item.get("approve")
        if not isinstance(approve, bool):
            raise InvalidRequest(f"Invalid '{path}.approve': must be true or false.", param=f"{path}.approve")
        if not isinstance(request_id, str) or request_id not in requests:
            hint = "Send it, or continue the response that contains it."
            message = f"Approval request with id '{request_id}' not found. {hint}"
            raise InvalidRequest(message, param=f"{path}.approval_request_id")
        if not approve:
            approved.pop(request_id, None)
            denied[request_id] = path
        elif request_id in denied or request_id in denied_before:
            raise answered_before(path, denied=True)
        elif request_id not in begun:
            notes = upstream.get(request_id, {}).get(NOTES, {})
            call_id = None if request_id in attempted else notes.get("call_id")
            approved[request_id] = ApprovedCall(requests[request_id], path, call_id, earlier.get(request_id))
    if len(approved) > MAX_APPROVED:
        raise InvalidRequest(f"Invalid 'input': must approve at most {MAX_APPROVED} calls.", param="input")
    return [*approved.values()], [*denied.items()][-MAX_DENIED:]


def answered_before(path: str, *, denied: bool) -> InvalidRequest:
    answer = "denied" if denied else "approved"
    message = f"This call was already {answer}. An approval request can be answered only once."
    return InvalidRequest(message, param=f"{path}.approve", code="already_answered")


def _requests(stored: Sequence[Item], new: Sequence[Item], turns: Sequence[Turn]) -> dict[str, Item]:
    """Approval requests by id: as created here, otherwise as first received."""
    requests: dict[str, Item] = {}
    for item in itertools.chain(*(turn.response["output"] for turn in turns), stored, new):
        if item["type"] == APPROVAL_REQUEST and isinstance(request_id := item.get("id"), str):
            requests.setdefault(request_id, item)
    return requests


def _approved_by(item: Item, upstream: Mapping[str, Upstream]) -> str | None:
    row = ITEM_TYPES.get(item["type"])
    if row is None or not row.hosted:
        return None
    approved_id = item.get("approval_request_id") or _notes(item, upstream).get("approval_request_id")
    return approved_id if isinstance(approved_id, str) else None


def _was_begun(item: Item, upstream: Mapping[str, Upstream]) -> bool:
    """False for a client's copy of a failed call: then claiming the approval decides whether it runs."""
    if notes := _notes(item, upstream):
        return notes.get("begun") is not False
    return item.get("status") != "failed" and not item.get("error")


def _notes(item: Item, upstream: Mapping[str, Upstream]) -> Mapping[str, object]:
    notes: Mapping[str, object] = upstream.get(str(item.get("id")), {}).get(NOTES, {})
    return notes
