"""
Normalizes the API paths that clients build from a base URL: with or without `/v1`, with a trailing slash, or with
Azure's `/openai`.

A redirect would not do: some clients drop the body, and behind a proxy some drop the key.
"""

from __future__ import annotations

import re

_SLASHES = re.compile("//+")
_BASE = re.compile(r"(?:/openai)?(/v1)*(?=/)")
_API = re.compile(
    r"(?:/v1)?/(?:responses|models|conversations|files|vector_stores|containers|antiphon"
    r"|chat|completions|embeddings|rerank|moderations|images|audio|deployments)(?:/|$)"
)


def normalized_path(path: str) -> str:
    """Return the path of the API route that `path` is a variant of; other paths are returned unchanged."""
    if path == "/v1/responses":
        return path  # without a search: most requests are for it
    normalized = _BASE.sub(r"\1", _SLASHES.sub("/", path).rstrip("/"), count=1)
    return normalized if _API.match(normalized) else path
