"""Backend faults: the caller's outcome and the stored record."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.faults.callers import COMPLETED, HELLO, WAYS, Ended, Outcome, Refused, calling, outcomes, received_responses
from tests.faults.faulty_stores import kept
from tests.faults.servers import LINUX, server
from tests.support.server_apis import SERVER_APIS, Frame, ServerAPI, encoded
from tests.support.sockets import listening
from tests.support.upstream import CLOSE, HANG, RESET, Step, Upstream, chunk, head, piece, reply, sse
from tests.support.upstream import upstream as upstream

PAGE = b"<!doctype html><html><title>It works!</title></html>"
UNPACKABLE = reply(bytes(range(256)), headers={"Content-Encoding": "gzip"})

_TEXT = b"x" * 1_000_000
_JSON = {"Content-Type": "application/json"}
HALF_A_DOCUMENT = [head({**_JSON, "Content-Length": "999"}) + b'{"choices": [', CLOSE]
DOCUMENT = [head({**_JSON, "Content-Length": "100000001"}) + b"{", *[_TEXT] * 100]
# The stream has started, so errors cannot change its status.
LINE = [*sse(b": wait\n\n", 0.5, b"data: {")[:-1], *[piece(_TEXT)] * 100, piece(b"")]
PACKED = reply(zlib.compress(b"{" + b" " * 100_000_000, level=1, wbits=31), headers={"Content-Encoding": "gzip"})
LINE_BEHIND = [*sse(chunk("Hel"), b"data: {")[:-1], *[piece(_TEXT)] * 100, piece(b"")]
HEAD = [b"HTTP/1.1 200 OK\r\n", *[b"X-%d: %b\r\n" % (n, b"x" * 60_000) for n in range(9)], HANG]


class Fault(NamedTuple):
    """A row: the backend's fault, and the outcome."""

    name: str
    steps: list[Step] | None  # None: it is not there
    as_json: Outcome
    streamed: Outcome  # SSE and WebSocket
    background: Outcome
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def seen(self) -> dict[str, Outcome]:
        return {
            "json": self.as_json,
            "sse": self.streamed,
            "websocket": self.streamed,
            "background": self.background,
            "followed": self.background,
        }

    @property
    def row(self) -> str:
        """The line in docs/faults.md."""
        cells = (
            self.name,
            self.as_json,
            self.streamed,
            self.background,
            f"`test_backend.py::test_backend_fault_ends_as_documented[{self.name}]`",
        )
        return f"| {' | '.join(map(str, cells))} |"


def refused(
    name: str,
    steps: list[Step] | None,
    status: int = 502,
    code: str = "server_error",
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Fault:
    """A fault before any output."""
    return Fault(name, steps, Refused(status, code), Refused(status, code), Ended("failed", code), settings)


def broken(
    name: str, steps: list[Step], code: str = "server_error", settings: Mapping[str, Any] = MappingProxyType({})
) -> Fault:
    """A fault within an answer."""
    failed = Ended("failed", code, "Hel")
    return Fault(name, steps, failed, failed, failed, settings)


def harmless(name: str, steps: list[Step]) -> Fault:
    """A fault without effect."""
    return Fault(name, steps, COMPLETED, COMPLETED, COMPLETED)


CUT_OFF = Ended("incomplete", "max_output_seconds", "Hel")
HURRY = {"backend_overrides": {"transport.first_byte_timeout": 2, "transport.idle_timeout": 2}}


def faults(api: ServerAPI) -> list[Fault]:
    """Return the rows for an API's servers."""
    hel, more, end = api.begin("Hel"), api.more("lo"), api.end()
    endless = event_stream(*hel, *[*api.more(""), 0.05] * 200)
    line_behind = [*event_stream(*hel, b"data: {")[:-1], *[piece(_TEXT)] * 100, piece(b"")]
    garbage = b"data: \xff[\n\n\xfe\n\n"
    return [
        refused("unreachable", None),
        refused("closes without a response", [CLOSE]),
        refused("resets the connection", [RESET]),
        refused("sends nothing", [HANG], 504, "timeout", HURRY),
        Fault(
            "sends nothing beyond ANTIPHON_OPEN_AFTER",
            [HANG],
            Refused(504, "timeout"),
            Ended("failed", "timeout"),
            Ended("failed", "timeout"),
            {"open_after": 0.1, **HURRY},
        ),
        refused("does not speak HTTP", [b"\x00\xff\x17 SSH-2.0\r\n\r\n", HANG]),
        refused("endless headers", HEAD),
        refused("HTML with status 200", reply(PAGE, "text/html")),
        refused("HTML with status 200 as an event stream", reply(PAGE, "text/event-stream")),
        refused("HTML with status 500", reply(PAGE, "text/html", status=500)),
        refused("HTML with status 503", reply(PAGE, "text/html", status=503), 503, "server_is_overloaded"),
        refused("binary garbage", reply(bytes(range(256)) * 100, "text/event-stream")),
        refused("garbage with Content-Encoding: gzip", UNPACKABLE),
        refused("half a JSON document", HALF_A_DOCUMENT),
        refused("a 100 MB document", DOCUMENT),
        refused("a compressed 100 MB document", PACKED),
        refused("a document with a million empty arrays", reply(b'{"choices": [' + b"[]," * 10**6 + b"[]]}")),
        Fault(
            "a 100 MB line",
            LINE,
            Refused(502, "server_error"),
            Ended("failed", "server_error"),
            Ended("failed", "server_error"),
        ),
        broken("a 100 MB line after some text", line_behind),
        broken("closes mid-stream", event_stream(*hel, CLOSE)),
        broken("resets mid-stream", event_stream(*hel, 0.1, RESET)),
        broken("stalls mid-chunk", event_stream(*hel, b'data: {"choices": [{"ind', HANG), "timeout", HURRY),
        broken("ends without a finish reason", event_stream(*hel)),
        broken("garbage in the chunked framing", [*event_stream(*hel)[:-1], b"\xff\xfe\r\n"]),
        broken("an error mid-stream", event_stream(*hel, api.error)),
        Fault("never ends, beyond ANTIPHON_MAX_OUTPUT_SECONDS", endless, *[CUT_OFF] * 3, {"max_output_seconds": 2}),
        harmless("slow", event_stream(*hel, 0.3, *more, 0.3, *end, *api.last)),
        harmless("closes after the finish reason", event_stream(*hel, *more, *end, CLOSE)),
        harmless("garbage between chunks", event_stream(*hel, garbage, *more, *end, *api.last)),
    ]


def event_stream(*steps: Frame | Step, headers: Mapping[str, str] | None = None) -> list[Step]:
    """Return an event stream with these frames, and pauses and signs between them."""
    return sse(*(encoded(step) if isinstance(step, dict | str) else step for step in steps), headers=headers)


FAULTS = faults(SERVER_APIS[0])
# The page's rows are for chat. With other APIs, callers see the same.
CASES = [
    pytest.param(api, fault, id=fault.name if api is SERVER_APIS[0] else f"{fault.name}, by {api.name}")
    for api in SERVER_APIS
    for fault in faults(api)
]


@pytest.mark.parametrize(("api", "fault"), CASES)
async def test_backend_fault_ends_as_documented(
    api: ServerAPI, fault: Fault, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.native = True
    hello = [
        *event_stream(*api.begin("Hel"), *api.more("lo"), *api.end(), *api.last, headers={"Connection": "close"}),
        CLOSE,
    ]
    overrides = {**api.settings, **fault.settings.get("backend_overrides", {})}
    settings = {
        "store_url": f"sqlite:///{tmp_path}/antiphon.db",
        "backend_url": upstream.url,
        "backend_retries": 0,
        **fault.settings,
        "backend_overrides": overrides,
    }
    async with listening(None, **settings) as url, calling(url) as caller:
        if fault.steps is None:
            await upstream.close()
            seen = await caller.ask_all()
            await upstream.open()
        else:
            upstream.always(fault.steps)
            seen = await caller.ask_all()
        assert outcomes(seen) == fault.seen
        assert kept(tmp_path) == received_responses(seen)

        upstream.always(hello)
        assert outcomes(await caller.ask_all()) == dict.fromkeys(WAYS, COMPLETED)


@LINUX
async def test_backend_sending_100_megabytes_is_not_buffered(upstream: Upstream) -> None:
    with server(backend_url=upstream.url, backend_retries=0) as served:
        async with calling(served.url) as caller:
            upstream.always(HELLO)
            await caller.ask_all()
            before = served.memory()
            for steps in (DOCUMENT, PACKED, LINE, LINE_BEHIND):
                upstream.always(steps)
                for way in WAYS:
                    await caller.ask(way)
                    assert served.memory() - before < 80 * 1024 * 1024
