"""
Where clients look for the API: at a base URL with or without `/v1`, with a slash at its end, or with Azure's `/openai`.

Redirecting them costs some their body and others, behind a proxy, their key.
"""

from __future__ import annotations

import re

_SLASHES = re.compile("//+")
_BASE = re.compile(r"(?:/openai)?(/v1)*(?=/)")
_API = re.compile(r"(?:/v1)?/(?:responses|models|conversations|antiphon)(?:/|$)")


def normalized_path(path: str) -> str:
    """Return the path of a route of the API for one that means it; any other path stays what it is."""
    meant = _BASE.sub(r"\1", _SLASHES.sub("/", path).rstrip("/"), count=1)
    return meant if _API.match(meant) else path
