"""Pages of lists, with cursors."""

from __future__ import annotations

import pytest

from app.api.pagination import page_of_items
from app.errors import InvalidRequest, NotFound
from app.tools.files import Page

ITEMS = [{"id": name} for name in "abcd"]  # oldest first


@pytest.mark.parametrize(
    ("page", "ids", "more"),
    [
        (Page(), "dcba", False),
        (Page(2), "dc", True),
        (Page(2, descending=False), "ab", True),
        (Page(2, after="c"), "ba", False),
        (Page(before="b"), "dc", False),
        (Page(1, descending=False, after="a", before="d"), "b", True),
        (Page(after="a"), "", False),
    ],
)
def test_page_has_the_items_between_its_cursors(page: Page, ids: str, more: bool) -> None:
    listed = page_of_items(ITEMS, page)
    assert listed["data"] == [{"id": name} for name in ids]
    assert (listed["first_id"], listed["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    assert listed["has_more"] == more


def test_cursor_that_is_no_item_raises_the_lists_own_error() -> None:
    with pytest.raises(InvalidRequest, match="'after'"):
        page_of_items(ITEMS, Page(after="x"))
    with pytest.raises(NotFound, match="'before'"):
        page_of_items(ITEMS, Page(before="x"), NotFound)
