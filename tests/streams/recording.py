"""
Recorded backend answers, played to the server: bytes in, events out.

Folders are servers (`vllm`: real output) or kinds of quirks (`tool_calls`); README.md lists all recordings.
`FOLDER/NAME.sse` is an answer's body, byte for byte. A first line `: {...}` is not part of it, but has optional fields:

    about      description, and the sender
    profile    the backend's profile
    overrides  changed profile options
    tools      names of the caller's functions
    request    other fields in the caller's request
    status     the backend's status
    headers    the backend's headers
    gzip       true: the body is sent compressed
    then       after the body: nothing by default, `break` a broken connection, `hang` silence

`FOLDER/NAME.events.jsonl` has the resulting events, one per line. Responses only have their changes since creation, and
only reported usage. A refusal is a line `{"refused": ...}`. A last line `{"upstream": ...}` has the backend's own data
to send back to it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from app.backends.profiles import load_profile
from app.backends.server.client import ModelServer
from app.core.ids import chain_key
from app.core.types.request import CreateResponse, Event
from app.errors import APIError
from app.responses import Caller, Run
from app.responses.encryption import ContentCipher
from app.stores.memory import MemoryStore
from tests.support.build import responses_on
from tests.support.deliveries import RecordingWriter

PLACE = Path(__file__).parent
CIPHER = ContentCipher(["a secret of the tests"])
NAMES = sorted(f"{path.parent.name}/{path.stem}" for path in PLACE.glob("*/*.sse"))
INDEX = PLACE / "README.md"


class Recording(NamedTuple):
    """A backend answer."""

    options: dict[str, Any]
    body: bytes

    def cut(self, positions: Iterable[int]) -> list[bytes]:
        """Return the body as it comes in, cut at these positions."""
        ends = sorted({min(position, len(self.body)) for position in positions} | {len(self.body)})
        return [self.body[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def load(name: str) -> Recording:
    data = (PLACE / f"{name}.sse").read_bytes()
    options: dict[str, Any] = {}
    if data.startswith(b": {"):
        first, _, data = data.partition(b"\n")
        options = json.loads(first[2:])
    return Recording(options, gzip.compress(data, mtime=0) if options.get("gzip") else data)


def index() -> str:
    """Return the text of the index, which lists all recordings by folder."""
    lines = ["# Recorded answers", "", "Made by `UPDATE_STREAMS=1 pytest tests/core/stream/test_streams.py`."]
    folder = ""
    for name in NAMES:
        if (parent := name.partition("/")[0]) != folder:
            folder = parent
            lines += ["", f"## {folder}", "", "| recording | what it is | profile |", "|---|---|---|"]
        options = load(name).options
        about = options.get("about", "").replace("|", "\\|")
        lines.append(f"| [{name.partition('/')[2]}]({name}.sse) | {about} | {options.get('profile', '')} |")
    return "\n".join(lines) + "\n"


class Wire(httpx.AsyncBaseTransport):
    """A connection with a recorded answer."""

    def __init__(self, recording: Recording, pieces: Sequence[bytes]) -> None:
        self._options = recording.options
        self._pieces = pieces

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        headers = {"content-type": "text/event-stream", **self._options.get("headers", {})}
        body = _Body(self._pieces, self._options.get("then"))
        return httpx.Response(
            self._options.get("status", 200),
            headers={name: value for name, value in headers.items() if value},
            stream=body,
        )


class _Body(httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[bytes], then: str | None) -> None:
        self._pieces = pieces
        self._then = then

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._then == "hang":
            await asyncio.Event().wait()
        elif self._then == "break":
            raise httpx.ReadError("The connection was reset.")


async def play(recording: Recording, positions: Iterable[int] = ()) -> tuple[list[Event], list[str]]:
    """Return the events as the caller gets them, and the lines of the golden file."""
    options = recording.options
    profile = load_profile(options.get("profile", "default")).override(options.get("overrides", {}))
    wire = Wire(recording, recording.cut(positions))
    backend = ModelServer("http://backend/v1", profile=profile, http=wire, retries=0)
    tools = [{"type": "function", "name": name} for name in options.get("tools", ())]
    body = {"model": "m", "input": "Hi", "store": False, "tools": tools, **options.get("request", {})}
    responses = responses_on(backend, MemoryStore(ttl=60, max_bytes=1), cipher=CIPHER)
    run = await responses.create(CreateResponse.model_validate(body), Caller())
    writer = RecordingWriter()
    try:
        await run.generate(writer)
    except APIError as error:
        refused = {"status": error.status, **error.payload(), **error.headers()}
        return [], [json.dumps({"refused": refused}, ensure_ascii=False)]
    events = writer.events
    return events, _golden(
        events,
        run,
        left_out={"completed_at", *(() if re.search(rb'"usage(Metadata)?"', recording.body) else ("usage",))},
    )


def _golden(events: list[Event], run: Run, left_out: set[str]) -> list[str]:
    records: list[dict[str, Any]] = [_brief(event, events[0], left_out) for event in events]
    if upstream := run.turn().upstream:
        records.append({"upstream": upstream})
    lines = [json.dumps(one, ensure_ascii=False) for one in records]
    return _with_short_ids(lines, chain_key(run.response["id"]) or "")


def _brief(event: Event, created: Event, left_out: set[str]) -> dict[str, Any]:
    if "response" not in event:
        return event
    before, now = created["response"], event["response"]
    changed = {name: value for name, value in now.items() if name == "status" or value != before[name]}
    return {**event, "response": {name: value for name, value in changed.items() if name not in left_out}}


def _with_short_ids(lines: list[str], key: str) -> list[str]:
    """Replace generated ids by `msg_0`, `fc_1` and so on."""
    numbers: dict[str, str] = {}

    def short(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"{match[1]}_{len(numbers)}")

    return [re.sub(rf"\b([a-z]+)_[0-9a-f]{{16}}{key}\b", short, line) for line in lines]
