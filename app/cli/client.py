"""What the commands that talk to a running server share: where it is, the caller's key, and what its errors mean."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

# Escape sequences and marks that reorder text would let a model's answer write over the terminal.
_HARMFUL = dict.fromkeys((*range(32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)))
_HARMLESS = {code: harm for code, harm in _HARMFUL.items() if chr(code) not in "\n\t"}


class ServerError(Exception):
    """The server refused, or is not there; the message says what to do."""


class ServerClient:
    """A running Antiphon at `url`, its base URL with `/v1`."""

    def __init__(self, url: str, key: str | None, *, proxied: bool) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # An answer may take as long as it likes; to connect may not.
        timeout = httpx.Timeout(None, connect=10)
        self.url = url
        self._http = httpx.Client(base_url=f"{url}/", headers=headers, timeout=timeout, trust_env=proxied)

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON of an answer; raises `ServerError`."""
        with self._errors():
            answer = self._http.get(path)
            _check(answer)
            found: dict[str, Any] = answer.json()
            return found

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of an answer; raises `ServerError`."""
        with self._errors(), self._http.stream("POST", path, json=body) as answer:
            if answer.is_error:
                answer.read()
            _check(answer)
            for line in answer.iter_lines():
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


def _check(answer: httpx.Response) -> None:
    if not answer.is_error:
        return
    try:
        error = answer.json()["error"]
        message = f"{error['message']} ({answer.status_code} {error['code']})"
    except (ValueError, LookupError, TypeError):
        message = f"The server answered {answer.status_code}."
    raise ServerError(message)


def safe(text: Any) -> str:
    """Return text without what would do something to a terminal."""
    return str(text).translate(_HARMLESS)
