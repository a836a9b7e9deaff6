"""
Normalizes API paths built from a base URL: with or without `/v1`, with a trailing slash, or with Azure's `/openai`.
Rejects URLs with NUL.

Redirects would not work: some clients drop the body, and some drop the key when a proxy is involved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import parse_qsl

from starlette.types import Scope

from app.errors import APIError, InvalidRequest, NotFound

_SLASHES = re.compile("//+")
_BASE = re.compile(r"(?:/openai)?(/v1)*(?=/)")


def path_normalizer(routes: Iterable[str]) -> Callable[[str], str]:
    """
    Return a function that maps variants of an API path to the route's path; other paths stay unchanged.

    `routes` are path patterns; paths outside `/v1` are ignored.
    """
    names = {path.split("/")[2] for path in routes if path.startswith("/v1/")}
    is_api = re.compile(rf"(?:/v1)?/(?:{'|'.join(map(re.escape, sorted(names)))})(?:/|$)").match

    @lru_cache(32)  # most requests use a few paths
    def normalize(path: str) -> str:
        normalized = _BASE.sub(r"\1", _SLASHES.sub("/", path).rstrip("/"), count=1)
        return normalized if is_api(normalized) else path

    return normalize


def nul_error(scope: Scope) -> APIError | None:
    """Return an error for a URL with NUL, which no name contains and some stores reject, or None."""
    if "\0" in scope["path"]:
        return NotFound("Not found: the path contains a NUL character.", code="unknown_url")
    if b"%00" not in scope["query_string"]:
        return None
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if "\0" in name or "\0" in value:
            param = name.replace("\0", "")
            return InvalidRequest(
                f"Invalid '{param}': must not contain a NUL character.", param=param, code="invalid_value"
            )
    return None
