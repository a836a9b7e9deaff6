"""Routes analyzed on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import compile_path, get_name


@contextmanager
def _without_pydantic_v1() -> Iterator[None]:
    """Hide pydantic.v1, which FastAPI imports only to reject its models: 1.5 MB per process, and 40 ms of startup."""
    hide = "pydantic.v1" not in sys.modules
    if hide:
        sys.modules["pydantic.v1"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hide:
            del sys.modules["pydantic.v1"]


# FastAPI's first analysis imports more modules, which would delay a request.
with _without_pydantic_v1():
    APIRoute("/", lambda parameter="": None)


class LazyRoute(APIRoute):
    """
    FastAPI analyzes the route at its first request, or for the OpenAPI document.

    Analyzing all routes would dominate the application's start time.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path, self.endpoint = path, endpoint
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.methods = {method.upper() for method in options.get("methods") or ["GET"]}
        self.name = options.get("name") or get_name(endpoint)
        self.include_in_schema = options.get("include_in_schema", True)
        self._options = options

    def __getattr__(self, name: str) -> Any:
        if (options := self.__dict__.pop("_options", None)) is None:
            raise AttributeError(name)
        with _without_pydantic_v1():
            super().__init__(self.path, self.endpoint, **{**options, "include_in_schema": self.include_in_schema})
        return getattr(self, name)
