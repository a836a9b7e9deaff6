"""Traffic between a client and Antiphon: client, transport and headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass
class Exchange:
    """A request, or a WebSocket with all its turns."""

    transport: str  # `http` or `websocket`
    path: str
    request_headers: dict[str, str]  # headers, by name in lower case
    response_headers: dict[str, str] = field(default_factory=dict)
    status: int | None = None


class Wire:
    """Records an application's traffic: `wire.before(app)` is an application, too."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def before(self, app: Any) -> Any:
        async def recording(scope: Message, receive: Receive, send: Send) -> None:
            if scope["type"] not in ("http", "websocket"):
                await app(scope, receive, send)
                return
            exchange = Exchange(scope["type"], scope["path"], _read(scope["headers"]))
            self.exchanges.append(exchange)

            async def tell(message: Message) -> None:
                if message["type"] == "http.response.start":
                    exchange.status, exchange.response_headers = message["status"], _read(message["headers"])
                await send(message)

            await app(scope, receive, tell)

        return recording

    @property
    def responses(self) -> list[Exchange]:
        """Exchanges for responses."""
        return [exchange for exchange in self.exchanges if exchange.path.endswith("/responses")]


def _read(headers: Any) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in headers}
