"""List parameters (`limit`, `order`, `after`, `before`), and cursor pages in OpenAI's format."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from app.core.types.request import Item
from app.errors import APIError, InvalidRequest
from app.tools.files import Page


def parse_whole_number(text: str) -> int | None:
    """Parse up to 18 digits."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


def parse_limit(text: str, maximum: int = 100) -> int:
    """Raises `InvalidRequest`."""
    limit = parse_whole_number(text)
    if limit is None or not 1 <= limit <= maximum:
        raise InvalidRequest(f"Invalid 'limit': must be an integer from 1 to {maximum}.", param="limit")
    return limit


def is_descending(order: str) -> bool:
    """Raises `InvalidRequest` for values other than `asc` and `desc`."""
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid 'order': must be 'asc' or 'desc'.", param="order")
    return order == "desc"


Limit = Annotated[str, Query(description="1 to 100")]
Order = Annotated[str, Query(description="`asc` or `desc`, by the time of creation")]
After = Annotated[str | None, Query(description="the id of the entry to list from")]
Before = Annotated[str | None, Query(description="the id of the entry to list up to")]


class ForwardQuery:
    """Parameters of a one-directional list. `page` checks them after the caller's key."""

    def __init__(self, limit: Limit = "20", order: Order = "desc", after: After = None) -> None:
        self.limit, self.order, self.after = limit, order, after

    def page(self) -> Page:
        return parse_page(self.limit, self.order, self.after)


class PageQuery(ForwardQuery):
    """Parameters of a list with cursors in both directions."""

    def __init__(self, limit: Limit = "20", order: Order = "desc", after: After = None, before: Before = None) -> None:
        super().__init__(limit, order, after)
        self.before = before

    def page(self) -> Page:
        return parse_page(self.limit, self.order, self.after, self.before)


class ItemsQuery(PageQuery):
    """
    Parameters for a conversation's items. Limits above 100 count as 100: the Agents SDK requests any number and
    continues after the last item.
    """

    def __init__(
        self,
        limit: Annotated[str, Query(description="1 to 100; larger values count as 100")] = "20",
        order: Order = "desc",
        after: After = None,
        before: Before = None,
    ) -> None:
        super().__init__("100" if (parse_whole_number(limit) or 0) > 100 else limit, order, after, before)


def parse_page(limit: str, order: str, after: str | None, before: str | None = None, *, maximum: int = 100) -> Page:
    """Raises `InvalidRequest`."""
    return Page(parse_limit(limit, maximum), is_descending(order), after or None, before or None)


def page_of_items(items: list[Item], page: Page, unknown_cursor: type[APIError] = InvalidRequest) -> dict[str, object]:
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
