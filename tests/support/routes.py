"""All routes of an application, for tests over every route."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """Methods and paths of all routes, with placeholders for parameters."""
    for route in routes:
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", ())
        yield from routes_of(inner)
        for method in getattr(route, "methods", None) or ():
            yield method, re.sub(r"{\w+(:path)?}", "x", route.path)
