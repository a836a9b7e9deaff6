"""
Normalizes API paths built from a base URL: without `/v1`, with a trailing slash, or below Azure's `/openai`.

Redirects would fail: some clients drop the body, and some the key if a proxy is involved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import parse_qsl

from starlette.types import Scope

from app.errors import APIError, InvalidRequest, NotFound

_SLASHES = re.compile("//+")
_BASE = re.compile(r"(?:/openai)?(?:/v1)*(?=/)")


def path_normalizer(routes: Iterable[str]) -> Callable[[str], str]:
    """Maps path variants to route paths. `routes` are path patterns; paths outside `/v1` are ignored."""
    names = {path.split("/")[2] for path in routes if path.startswith("/v1/")}
    is_api = re.compile(rf"/v1/(?:{'|'.join(map(re.escape, sorted(names)))})(?:/|$)").match

    @lru_cache(32)
    def normalize(path: str) -> str:
        normalized = _BASE.sub("/v1", _SLASHES.sub("/", path).rstrip("/"), count=1)
        return normalized if is_api(normalized) else path

    return normalize


def nul_error(scope: Scope) -> APIError | None:
    """Reject URLs with NUL, which no name contains and some stores reject."""
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
