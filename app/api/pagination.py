"""List parameters (`limit`, `order`, `after`, `before`), and cursor pages in OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends, Query

from app.errors import APIError, InvalidRequest
from app.tools.files import Page


def parse_whole_number(text: str) -> int | None:
    """Parse up to 18 digits."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


Limit = Annotated[int, Query(ge=1, le=100)]
Order = Annotated[Literal["asc", "desc"], Query(description="by the time of creation")]
After = Annotated[str | None, Query(description="the id of the entry to list from")]
Before = Annotated[str | None, Query(description="the id of the entry to list up to")]


async def _page(limit: Limit = 20, order: Order = "desc", after: After = None, before: Before = None) -> Page:
    return Page(limit, order == "desc", after or None, before or None)


async def _items_page(
    limit: Annotated[int, Query(ge=1, description="values above 100 count as 100")] = 20,
    order: Order = "desc",
    after: After = None,
    before: Before = None,
) -> Page:
    return await _page(min(limit, 100), order, after, before)


PageQuery = Annotated[Page, Depends(_page)]
# The Agents SDK requests any number of a conversation's items, and continues after the last item.
ItemsQuery = Annotated[Page, Depends(_items_page)]


def page_of_items(
    items: Sequence[Mapping[str, Any]], page: Page, unknown_cursor: type[APIError] = InvalidRequest
) -> dict[str, object]:
    """`items` are oldest first; raises `unknown_cursor` if a cursor is not an item's id."""
    ordered = items[::-1] if page.descending else items
    ids = [item["id"] for item in ordered]
    start = _index(ids, page.after, "after", unknown_cursor) + 1 if page.after else 0
    end = _index(ids, page.before, "before", unknown_cursor) if page.before else len(ordered)
    rest = ordered[start:end]
    data = rest[: page.limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(rest) > page.limit,
    }


def _index(ids: list[str], cursor: str, param: str, unknown_cursor: type[APIError]) -> int:
    if cursor not in ids:
        raise unknown_cursor(f"Invalid '{param}': item with id '{cursor}' not found.", param=param)
    return ids.index(cursor)
