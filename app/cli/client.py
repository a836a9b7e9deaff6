"""The HTTP client of the commands that use a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from app.core.types import JSONObject

# Control characters and bidirectional marks, with which a model's answer could manipulate the terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)))
_REMOVED = {code: None for code in _CONTROLS if chr(code) not in "\n\t"}


class ServerError(Exception):
    """The server refused a request or cannot be reached; the message says what to do."""


class ServerClient:
    """A running Antiphon at `url`, its base URL with `/v1`."""

    def __init__(self, url: str, key: str | None, *, proxied: bool, timeout: float | None = None) -> None:
        """`timeout` is in seconds, for each step of a request; None limits only connecting."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = url
        self._http = httpx.Client(
            base_url=f"{url}/",
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=timeout or 10),
            trust_env=proxied,
        )

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def get(self, path: str) -> JSONObject:
        """Return the JSON body of a GET request; raises `ServerError`."""
        with self._errors():
            response = self._http.get(path)
            _check(response)
            body: dict[str, object] = response.json()
            return body

    def stream(self, path: str, body: dict[str, object]) -> Iterator[JSONObject]:
        """Yield the events of a streamed POST request; raises `ServerError`."""
        with self._errors(), self._http.stream("POST", path, json=body) as response:
            if response.is_error:
                response.read()
            _check(response)
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise ServerError(f"There is no server at {self.url}. Start one: antiphon serve") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ServerError(f"The connection to {self.url} failed: {error}") from None


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        error = response.json()["error"]
        message = f"{error['message']} ({response.status_code} {error['code']})"
    except (ValueError, LookupError, TypeError):
        message = f"The server returned status {response.status_code}."
    raise ServerError(message)


def safe(text: object) -> str:
    """Return text without control characters, except newlines and tabs."""
    return str(text).translate(_REMOVED)
