"""Web pages as text: fetched through the guard, and parsed in a thread."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from app.tools.guard import FetchedPage, OutboundRefused, Reach, URLPattern, fetch

MAX_TEXT_CHARS = 400_000  # of one page
MAX_MATCHES = 20
_CONTEXT = 200  # characters on each side of a match
_READERS = asyncio.Semaphore(2)  # pages that are parsed concurrently, which takes CPU


class PageFailed(Exception):
    """A page could not be fetched or read; the message is fit for the model and the caller."""


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of a page."""

    url: str  # after redirects
    title: str
    text: str


async def open_page(url: str, *, domains: Sequence[str], reach: Reach, seconds: float) -> PageText:
    """
    Fetch a web page and return its text; raises `PageFailed`.

    The page and each redirect must be in one of the `domains`; an empty list allows all. `seconds` limits the fetch.
    """
    try:
        page = await fetch(url, allowed=_patterns(domains, reach), reach=reach, seconds=seconds)
    except OutboundRefused as error:
        raise PageFailed(str(error)) from None
    except TimeoutError:
        raise PageFailed("The page did not come in time.") from None
    except httpx.HTTPError:
        raise PageFailed("The page cannot be reached.") from None
    if page.status != 200:
        raise PageFailed(f"The page cannot be read: its server answered with status {page.status}.")
    async with _READERS:
        text = await asyncio.to_thread(_read, page)
    return text


def _patterns(domains: Sequence[str], reach: Reach) -> list[URLPattern] | None:
    """Return the patterns of allowed URLs; None if every https URL is allowed."""
    hosts = [host for domain in domains for host in (domain, f"*.{domain}")]
    if reach == "public" and not hosts:
        return None
    schemes = ("https",) if reach == "public" else ("https", "http")
    return [URLPattern(scheme, host, port, "/*") for host in hosts or ["*"] for scheme, port in _ports(schemes)]


def _ports(schemes: Sequence[str]) -> list[tuple[str, int]]:
    return [(scheme, 443 if scheme == "https" else 80) for scheme in schemes]


def _read(page: FetchedPage) -> PageText:
    url = str(page.url)
    media_type, _, parameters = page.content_type.lower().partition(";")
    media_type = media_type.strip()
    if media_type in ("text/html", "application/xhtml+xml", ""):
        return _read_html(url, page.content)
    if media_type.startswith("text/") or media_type in ("application/json", "application/xml") or "+json" in media_type:
        charset = re.search(r"charset=\"?([\w-]+)", parameters)
        return PageText(url, url, _decoded(page.content, charset[1] if charset else "utf-8")[:MAX_TEXT_CHARS])
    raise PageFailed(f"The page cannot be read: it is of the type {media_type}.")


def _decoded(content: bytes, charset: str) -> str:
    try:
        return content.decode(charset, "replace")
    except LookupError:
        return content.decode("utf-8", "replace")


def _read_html(url: str, content: bytes) -> PageText:
    import trafilatura  # an extra, and slow to import

    document = trafilatura.bare_extraction(
        content, url=url, output_format="python", include_links=True, include_tables=True, with_metadata=True
    )
    text = getattr(document, "text", None) or trafilatura.html2txt(content)
    if not text:
        raise PageFailed("The page has no text.")
    return PageText(url, getattr(document, "title", None) or url, str(text)[:MAX_TEXT_CHARS])


def matches(text: str, pattern: str) -> list[str]:
    """Return the parts of a text around each match of a pattern, ignoring case; at most `MAX_MATCHES`."""
    excerpts: list[str] = []
    last = -1
    for match in re.finditer(re.escape(pattern.strip()), text, re.IGNORECASE):
        if match.start() <= last:
            continue  # in the previous excerpt
        last = match.end() + _CONTEXT
        excerpts.append(text[max(0, match.start() - _CONTEXT) : last].strip())
        if len(excerpts) == MAX_MATCHES:
            break
    return excerpts
