from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_INVISIBLE = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption"}
)
_BLOCKS |= {"figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol"}
_BLOCKS |= {"option", "p", "pre", "section", "summary", "table", "td", "th", "tr", "ul"}


def html_title_and_text(page: str | bytes) -> tuple[str, str]:
    """Non-UTF-8 bytes are decoded with the declared charset, else as Latin-1."""
    from lxml import etree, html  # an extra

    data = page.encode("utf-8", "replace") if isinstance(page, str) else page
    try:
        data.decode()
        encoding = "utf-8"
    except UnicodeError:
        encoding = None
    parser = html.HTMLParser(encoding=encoding, huge_tree=False)
    try:
        tree = html.document_fromstring(data, parser=parser)
    except etree.ParserError:
        return "", ""
    return " ".join((tree.findtext(".//title") or "").split()), "".join(_visible_text(tree))


def _visible_text(tree: object) -> Iterator[str]:
    """Iterative, since nesting may exceed the recursion limit."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
            continue
        visible = isinstance(node.tag, str) and node.tag not in _INVISIBLE
        block = visible and node.tag in _BLOCKS
        if node.tail:
            stack.append(_spaced(node.tail))
        if block:
            stack.append("\n")
        if visible:
            stack.extend(reversed(node))
            stack.append(node.text if node.tag == "pre" and node.text else _spaced(node.text or ""))
        if block:
            stack.append("\n\n" if node.tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6") else "\n")


def _spaced(text: str) -> str:
    inner = " ".join(text.split())
    if not inner:
        return " " if text else ""
    return f"{' ' if text[0].isspace() else ''}{inner}{' ' if text[-1].isspace() else ''}"
