from __future__ import annotations

from collections.abc import Sequence

import httpx

from app.runtime.connect_errors import why_no_answer
from app.runtime.worker_processes import CallDied, CallTookTooLong, IsolatedCalls
from app.tools.guard import AddressPolicy, OutboundRefused, URLPattern, fetch
from app.tools.web_search.page_text import PageFailed, PageText, read_page
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
        """Raises `PageFailed`. The page and each redirect must be in an `allowed` domain; an empty list allows all."""
        if not url:
            raise PageFailed("`url` must be the URL of a page.")
        if not is_in_domains(url, allowed, blocked):
            raise PageFailed("The page is not in an allowed domain.")
        try:
            page = await fetch(
                url,
                allowed=_patterns(allowed, self._policy),
                policy=self._policy,
                seconds=self._seconds,
            )
        except OutboundRefused as error:
            raise PageFailed(str(error)) from None
        except TimeoutError:
            raise PageFailed("The page did not load in time.") from None
        except httpx.HTTPError as error:
            raise PageFailed(f"The page's server does not answer: {why_no_answer(error)}.") from None
        if not is_in_domains(str(page.url), allowed, blocked):
            raise PageFailed("The page redirects to a domain that is not allowed.")
        if page.status != 200:
            raise PageFailed(f"The page cannot be read: its server returned status {page.status}.")
        try:
            arguments = str(page.url), page.content_type, page.content, EXTRACT_SECONDS
            return await self._readers.run(owner, read_page, *arguments)
        except CallTookTooLong:
            raise PageFailed("The page takes too long to read.") from None
        except CallDied:
            raise PageFailed("The page takes too much memory to read.") from None


def _patterns(domains: Sequence[str], policy: AddressPolicy) -> list[URLPattern] | None:
    """None if every https URL is allowed."""
    hosts = [host for domain in domains for host in (domain, f"*.{domain}")]
    if policy == "public" and not hosts:
        return None
    ports = {"https": 443} if policy == "public" else {"https": 443, "http": 80}
    return [URLPattern(scheme, host, port, "/*") for host in hosts or ["*"] for scheme, port in ports.items()]
