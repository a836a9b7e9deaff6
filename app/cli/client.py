"""HTTP client for commands that use a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from app.cli.options import CommandError
from app.core.types import JSONObject


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
        """Raises `CommandError`."""
        return self.send("GET", path)[0]

    def send(self, method: str, path: str, body: JSONObject | None = None) -> tuple[JSONObject, Mapping[str, str]]:
        """Return the response's body and headers; raises `CommandError`."""
        with self._errors():
            response = self._http.request(method, path, json=body)
            _check(response)
            return response.json(), response.headers

    def stream(self, path: str, body: dict[str, object]) -> Iterator[JSONObject]:
        """Raises `CommandError`."""
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
            raise CommandError(f"No server found at {self.url}. Start one: antiphon serve") from None
        except httpx.TimeoutException:
            raise CommandError(f"The server at {self.url} did not answer in time.") from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL):
            message = f"{self.url!r} is not a base URL. Expected something like http://127.0.0.1:8080/v1"
            raise CommandError(message) from None
        except httpx.RemoteProtocolError:
            raise CommandError(f"The connection to {self.url} was lost, or the server does not speak HTTP.") from None
        except httpx.HTTPError as error:
            raise CommandError(f"The connection to {self.url} failed: {error or 'it was closed'}") from None
        except ValueError:
            raise CommandError(f"The server at {self.url} is not an Antiphon: its response is not JSON.") from None


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        error = response.json()["error"]
        message = f"{error['message']} ({response.status_code} {error['code']})"
    except (ValueError, LookupError, TypeError):
        message = f"{response.url} answered with status {response.status_code} and without an error in JSON."
    raise CommandError(message)


_MODELS_TIMEOUT = 15  # seconds


def first_model(url: str, key: str | None, *, proxied: bool) -> str:
    """Raises `CommandError`."""
    with ServerClient(url, key, proxied=proxied, timeout=_MODELS_TIMEOUT) as client:
        listed = client.get("models")
    models = listed.get("data") if isinstance(listed, dict) else None
    if isinstance(models, list) and models and isinstance(models[0], dict) and models[0].get("id"):
        return str(models[0]["id"])
    if isinstance(models, list):
        raise CommandError(f"The server at {url} lists no models. Name one: --model NAME")
    raise CommandError(
        f"The server at {url} is not an Antiphon: its response has no list of models. The URL must end in /v1."
    )


def has_web_search(url: str, key: str | None) -> bool:
    """False also if the server cannot be reached."""
    try:
        with ServerClient(url, key, proxied=True, timeout=_MODELS_TIMEOUT) as client:
            tools = client.get("antiphon/about").get("tools")
    except CommandError:
        return False
    return isinstance(tools, list) and any(tool.get("type") == "web_search" for tool in tools)
