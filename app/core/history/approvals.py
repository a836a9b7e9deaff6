"""The calls that a request approves: which they are, and which of them were made before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.core.history.turns import Turn
from app.core.stream.event_builder import Upstream
from app.core.types.items import ITEM_TYPES
from app.core.types.readings import NOTES
from app.core.types.request import Item
from app.errors import InvalidRequest

APPROVAL_REQUEST, APPROVAL_RESPONSE = "mcp_approval_request", "mcp_approval_response"


class ApprovedCall(NamedTuple):
    """A call that the caller approves."""

    request: Item  # as it was stored, where it was
    call_id: str | None  # of the call, as the backend knows it
    earlier: tuple[Item, Upstream] | None = None  # the item of the call, where it was made before


def answers_approvals(items: Iterable[Item]) -> bool:
    """Tell whether there is a response to a request for approval among the items."""
    return any(item["type"] == APPROVAL_RESPONSE for item in items)


def find_approvals(
    stored: Sequence[Item], new: Sequence[Item], upstream: Mapping[str, Upstream], turns: Iterable[Turn]
) -> list[ApprovedCall]:
    """
    Return the calls that new items approve and that are not made in the conversation yet.

    `stored` are the items before them, and `turns` all that are stored of the chains, siblings too. Raises
    `InvalidRequest` for a response that is malformed, or to a request that nobody made.
    """
    requests = {item.get("id"): item for item in (*new, *stored) if item["type"] == APPROVAL_REQUEST}
    made = {id for item in (*stored, *new) if (id := _approved_by(item, upstream))}
    earlier = {
        id: (item, turn.upstream.get(str(item.get("id")), {}))
        for turn in turns
        for item in turn.response["output"]
        if (id := _approved_by(item, turn.upstream))
    }
    approvals: dict[str, ApprovedCall] = {}
    for index, item in enumerate(new):
        if item["type"] != APPROVAL_RESPONSE:
            continue
        request_id, approve = item.get("approval_request_id"), item.get("approve")
        if not isinstance(approve, bool):
            raise InvalidRequest("'approve' should be true or false.", param=f"input[{index}].approve")
        if not isinstance(request_id, str) or request_id not in requests:
            message = f"There is no approval request with the id '{request_id}'"
            message = f"{message}: send it, or continue the response that made it."
            raise InvalidRequest(message, param=f"input[{index}].approval_request_id")
        if approve and request_id not in made:
            notes = upstream.get(request_id, {}).get(NOTES, {})
            approvals[request_id] = ApprovedCall(requests[request_id], notes.get("call_id"), earlier.get(request_id))
    return [*approvals.values()]


def _approved_by(item: Item, upstream: Mapping[str, Upstream]) -> str | None:
    """Return the id of the request for approval that a call was made by, if there is one."""
    row = ITEM_TYPES.get(item["type"])
    if row is None or not row.hosted:
        return None
    notes: Mapping[str, object] = upstream.get(str(item.get("id")), {}).get(NOTES, {})
    id = item.get("approval_request_id") or notes.get("approval_request_id")
    return id if isinstance(id, str) else None
