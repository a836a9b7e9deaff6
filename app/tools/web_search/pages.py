"""
Web pages: loads them, extracts their text, and finds matches in it.

Pages are untrusted and extraction can be very slow, so it runs in a worker process.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import httpx

from app.core.charsets import codec_of, declared_charset, decoded
from app.runtime.document_text import html_title_and_text
from app.runtime.outbound import why_no_answer
from app.runtime.worker_processes import IsolatedCallFailed, IsolatedCalls
from app.tools import CallFailed
from app.tools.guard import AddressPolicy, URLPattern, fetch
from app.tools.web_search.providers import is_in_domains

PAGE_READERS = 3  # concurrent CPU-bound parsers; one fewer per caller
PAGE_SECONDS = 30.0  # per page, including process startup
EXTRACT_SECONDS = 8.0  # to extract the article; then the page's full text is used
PAGE_MEMORY = 1024**3  # bytes of address space


class Pages:
    def __init__(self, policy: AddressPolicy, seconds: float) -> None:
        self._policy: AddressPolicy = policy
        self._seconds = seconds
        self._readers = IsolatedCalls(PAGE_READERS, seconds=PAGE_SECONDS, memory=PAGE_MEMORY)

    async def open(self, url: str, owner: str, allowed: Sequence[str], blocked: Sequence[str]) -> PageText:
        """Raises `CallFailed`. The page and each redirect must be in an `allowed` domain; an empty list allows all."""
        if not url:
            raise CallFailed("`url` must be the URL of a page.")
        if not is_in_domains(url, allowed, blocked):
            raise CallFailed("The page is not in an allowed domain.")
        try:
            page = await fetch(
                url,
                allowed=_patterns(allowed, self._policy),
                policy=self._policy,
                seconds=self._seconds,
            )
        except TimeoutError:
            raise CallFailed("The page did not load in time.") from None
        except httpx.HTTPError as error:
            raise CallFailed(f"The page's server does not answer: {why_no_answer(error)}.") from None
        if not is_in_domains(str(page.url), allowed, blocked):
            raise CallFailed("The page redirects to a domain that is not allowed.")
        if page.status_code != 200:
            raise CallFailed(f"The page cannot be read: its server returned status {page.status_code}.")
        try:
            content_type = page.headers.get("content-type", "")
            return await self._readers.run(owner, read_page, str(page.url), content_type, page.content, EXTRACT_SECONDS)
        except IsolatedCallFailed as failure:
            raise CallFailed(f"The page {failure}.") from None


def _patterns(domains: Sequence[str], policy: AddressPolicy) -> list[URLPattern] | None:
    """None if every https URL is allowed."""
    hosts = [host for domain in domains for host in (domain, f"*.{domain}")]
    if policy == "public" and not hosts:
        return None
    ports = {"https": 443} if policy == "public" else {"https": 443, "http": 80}
    return [URLPattern(scheme, host, port, "/*") for host in hosts or ["*"] for scheme, port in ports.items()]


MAX_TEXT_CHARS = 400_000  # per page
MAX_PATTERN_CHARS = 1000
MAX_MATCHES = 20

_CONTEXT = 200  # characters on each side of a match
_MAX_TITLE = 300  # characters
_META = re.compile(rb"<meta[^<>]{0,500}?charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_HEAD = 4096  # bytes searched for a charset declaration
_BOMS = ((b"\xef\xbb\xbf", "utf_8"), (b"\xff\xfe", "utf_16_le"), (b"\xfe\xff", "utf_16_be"))


@dataclass(frozen=True, slots=True)
class PageText:
    url: str  # after redirects
    title: str
    text: str


def read_page(url: str, content_type: str, content: bytes, seconds: float) -> PageText:
    """
    Raises `CallFailed`.

    For HTML, returns the article, or the whole page if none is found within `seconds`.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    is_html = media_type in ("text/html", "application/xhtml+xml", "")
    if not (is_html or media_type.startswith("text/") or re.search(r"[/+](json|xml)$", media_type)):
        raise CallFailed(f"The page cannot be read: its type is {media_type[:100]}.")
    text = _decoded(content, declared_charset(content_type), is_html=is_html)
    if not is_html:
        return PageText(url, url, text[:MAX_TEXT_CHARS])
    title, visible = _title_and_text(text, url, seconds)
    if not visible.strip():
        raise CallFailed("The page has no text.")
    return PageText(url, " ".join(title.split())[:_MAX_TITLE] or url, visible[:MAX_TEXT_CHARS])


def _decoded(content: bytes, charset: str | None, *, is_html: bool) -> str:
    """Like browsers: by byte order mark, else by the charset declared by the server or the page."""
    for mark, marked in _BOMS:
        if content.startswith(mark):
            return decoded(content.removeprefix(mark), marked)
    if charset is None and is_html and (match := _META.search(content[:_HEAD])):
        charset = match[1].decode("ascii", "replace")
    if codec := codec_of(charset or ""):
        return decoded(content, codec)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return decoded(content, "cp1252")


class _TooSlow(BaseException):
    """Not an `Exception`, since trafilatura would catch it."""


def _title_and_text(page: str, url: str, seconds: float) -> tuple[str, str]:
    import trafilatura  # an extra, and slow to import

    try:
        with _interrupted(seconds):
            document = trafilatura.bare_extraction(
                page, url=url, output_format="python", include_links=True, include_tables=True, with_metadata=True
            )
    except (_TooSlow, MemoryError):
        document = None
    title, article = getattr(document, "title", None), getattr(document, "text", None)
    if article:
        return title or "", article
    plain_title, plain_text = html_title_and_text(page)
    return title or plain_title, plain_text


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Raise `_TooSlow` after some seconds, if the system supports it; main thread only."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    if not hasattr(signal, "setitimer"):  # on Windows
        yield
        return
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def matches(text: str, pattern: str) -> list[str]:
    """Each match with its context, ignoring case."""
    folded, wanted = _folded(text), _folded(pattern.strip())
    excerpts: list[str] = []
    at = folded.find(wanted)
    while at >= 0 and len(excerpts) < MAX_MATCHES:
        end = at + len(wanted) + _CONTEXT
        excerpts.append(text[max(0, at - _CONTEXT) : end].strip())
        at = folded.find(wanted, end + 1)
    return excerpts


def _folded(text: str) -> str:
    """Fold case without changing the text's length."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded
    # ß would become ss, and İ two characters.
    return "".join(one if len(one := character.casefold()) == 1 else character.lower()[:1] for character in text)
