"""HTTP client for commands that use a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from app.core.types import JSONObject

# Control characters and bidirectional marks, with which model output could manipulate the terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)))
_REMOVED = {code: None for code in _CONTROLS if chr(code) not in "\n\t"}


class ServerError(Exception):
    """The server rejected a request or cannot be reached; the message contains the remedy."""


class ServerClient:
    """`url` is the server's base URL with `/v1`."""

    def __init__(self, url: str, key: str | None, *, proxied: bool, timeout: float | None = None) -> None:
        """`timeout` is in seconds per request step; None limits only connecting."""
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
        """Raises `ServerError`."""
        return self.send("GET", path)[0]

    def send(self, method: str, path: str, body: JSONObject | None = None) -> tuple[JSONObject, Mapping[str, str]]:
        """Return the response's body and headers; raises `ServerError`."""
        with self._errors():
            response = self._http.request(method, path, json=body)
            _check(response)
            return response.json(), response.headers

    def stream(self, path: str, body: dict[str, object]) -> Iterator[JSONObject]:
        """Raises `ServerError`."""
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
            raise ServerError(f"No server found at {self.url}. Start one: antiphon serve") from None
        except httpx.TimeoutException:
            raise ServerError(f"The server at {self.url} did not answer in time.") from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL):
            message = f"{self.url!r} is not a base URL. Expected something like http://127.0.0.1:8080/v1"
            raise ServerError(message) from None
        except httpx.RemoteProtocolError:
            raise ServerError(f"The connection to {self.url} was lost, or the server does not speak HTTP.") from None
        except httpx.HTTPError as error:
            raise ServerError(f"The connection to {self.url} failed: {error or 'it was closed'}") from None
        except ValueError:
            raise ServerError(f"The server at {self.url} is not an Antiphon: its response is not JSON.") from None


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        error = response.json()["error"]
        message = f"{error['message']} ({response.status_code} {error['code']})"
    except (ValueError, LookupError, TypeError):
        message = f"{response.url} answered with status {response.status_code} and without an error in JSON."
    raise ServerError(message)


_MODELS_TIMEOUT = 15  # seconds


def first_model(url: str, key: str | None, *, proxied: bool) -> str:
    """Raises `ServerError`."""
    with ServerClient(url, key, proxied=proxied, timeout=_MODELS_TIMEOUT) as client:
        listed = client.get("models")
    models = listed.get("data") if isinstance(listed, dict) else None
    if isinstance(models, list) and models and isinstance(models[0], dict) and models[0].get("id"):
        return str(models[0]["id"])
    if isinstance(models, list):
        raise ServerError(f"The server at {url} lists no models. Name one: --model NAME")
    raise ServerError(
        f"The server at {url} is not an Antiphon: its response has no list of models. The URL must end in /v1."
    )


def has_web_search(url: str, key: str | None) -> bool:
    """False also if the server cannot be reached."""
    try:
        with ServerClient(url, key, proxied=True, timeout=_MODELS_TIMEOUT) as client:
            tools = client.get("antiphon/about").get("tools")
    except ServerError:
        return False
    return isinstance(tools, list) and any(tool.get("type") == "web_search" for tool in tools)


def safe(text: object) -> str:
    """Remove control characters except newlines and tabs."""
    return str(text).translate(_REMOVED)
