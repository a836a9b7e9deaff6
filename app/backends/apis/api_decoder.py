"""Decode an answer's body, fed in pieces, into deltas; synchronous, without a clock."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from app.backends.apis.filters import Filter
from app.backends.server.errors.classification import failure
from app.core.sse.decoder import MAX_EVENT_BYTES, TOO_LONG, EventDecoder, check_piece, encodable
from app.core.sse.repeats import PatternMatcher, RawEvent, ServerEvent
from app.core.types import JSONObject, json_objects
from app.core.types.deltas import DONE, Delta
from app.errors import BackendError

# Converts a complete JSON answer to stream events; raises `BackendError`.
AsEvents: TypeAlias = Callable[[list[JSONObject]], list[RawEvent]]


_MARK_OR_BLANKS = b"\xef\xbb\xbf \t\r\n"  # a byte order mark's bytes, and white space
_WEB_PAGE = "The backend answered with a web page. Check its base URL, including a path such as /v1."


class BodyDecoder:
    """
    Decodes an event stream or JSON. The body's first byte tells which, regardless of headers.

    Raises `BackendError` for HTML: usually the base URL points to a web site.
    """

    def __init__(self, as_events: AsEvents, stream: EventDecoder) -> None:
        self._as_events = as_events
        self._stream = stream
        self._is_stream = False  # known after the first byte
        self._pieces: list[bytes] = []  # of JSON
        self._size = 0  # bytes in `_pieces`

    def decode(self, data: bytes) -> list[ServerEvent]:
        if self._is_stream:
            return self._stream.decode(data)
        if not self._pieces:
            data = data.lstrip(_MARK_OR_BLANKS)
            if not data:
                return []
            if data[:1] == b"<":
                raise BackendError(_WEB_PAGE)
            if data[:1] not in (b"{", b"["):
                self._is_stream = True
                return self._stream.decode(data)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MAX_EVENT_BYTES:
            self._pieces.clear()
            raise BackendError(TOO_LONG)
        return []

    def end(self) -> list[ServerEvent]:
        if not self._pieces:
            return self._stream.end()
        text = b"".join(self._pieces)
        self._pieces.clear()
        values = _values(text)
        del text
        return [*self._as_events(values)]


NO_ANSWER = "The backend's answer is empty."
_BLANKS = re.compile(r"\s*")


def _values(text: bytes) -> list[JSONObject]:
    """
    JSON values before the first invalid one, with lists flattened.

    Some servers append `data: [DONE]`, some send several values.
    """
    check_piece(text)
    try:
        values = [orjson.loads(text)]
    except orjson.JSONDecodeError:
        values = _leading_values(text.decode(errors="replace"))
    return json_objects([item for value in values for item in (value if isinstance(value, list) else [value])])


def _leading_values(text: str) -> list[Any]:
    values: list[Any] = []
    at, decoder = 0, json.JSONDecoder()
    try:
        while (at := _BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, at = decoder.raw_decode(text, at)
            values.append(encodable(value))
    except (ValueError, RecursionError) as error:
        if not values:
            raise BackendError("The backend's answer is not complete, or not JSON.") from error
    return values


# Returns the error in an event or JSON answer, in any server's form.
ErrorIn: TypeAlias = Callable[[JSONObject], BackendError | None]


class APIDecoder(ABC):
    def __init__(
        self,
        body: BodyDecoder,
        error_in: ErrorIn,
        filters: Sequence[Filter] = (),
        repeats: PatternMatcher | None = None,
    ) -> None:
        """`repeats`, shared with `body`, decodes reads of a single event without parsing all of it."""
        self.ending = False  # a finish reason, the end mark or an error was received
        self.done = False  # the server marked the answer's end
        self.paused = False  # the answer goes on after another request: see `continuation`
        self.finished = False  # received a finish reason; afterwards a broken connection is harmless
        self.resumed = False  # output followed a finish reason, which some gateways send with every delta
        self.empty = False  # the body ended without a delta
        self.failure: BackendError | None = None  # the reported error, or why the body is not an answer
        self.warnings: list[str] = []  # a sentence for each omitted part of the answer
        self._body = body
        self._error_in = error_in
        self._filters = filters
        self._repeats = repeats
        self._begun = False

    def continuation(self) -> JSONObject:
        """The request that continues a paused answer."""
        raise NotImplementedError

    def resume(self) -> None:
        self.ending = self.done = self.paused = False

    def decode(self, data: bytes) -> list[Delta]:
        if self._repeats and (delta := self._repeats.match_frame(data)):  # most reads in a slow stream
            if not (self._filters or self.ending):
                return [delta]
            self.resumed = self.resumed or self.finished
            return self._filtered([delta], ended=False)
        try:
            return self._deltas(self._body.decode(data))
        except BackendError as error:
            self.failure = error
            return self.cut()
        finally:
            self.ending = self.finished or self.done or self.failure is not None

    def end(self) -> list[Delta]:
        try:
            deltas = self._deltas(self._body.end())
        except BackendError as error:
            self.failure = error
            return self.cut()
        if not (self.failure or self._begun):
            self.empty, self.failure = True, failure("failure", NO_ANSWER)
        return deltas if self.done or self.failure else [*deltas, *self.cut()]

    def cut(self) -> list[Delta]:
        """Held deltas when the connection breaks; an incomplete event is lost."""
        return self._filtered([], ended=True)

    def _deltas(self, events: list[ServerEvent]) -> list[Delta]:
        if not events:
            return []
        deltas = self._read(events)
        ended = self.done and not self.paused
        if self._filters:
            deltas = self._filtered(deltas, ended=ended or self.failure is not None)
        return [*deltas, DONE] if ended else deltas

    def _filtered(self, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        for each in self._filters:
            deltas = each.feed(deltas)
            if ended:
                deltas = [*deltas, *each.end()]
        return deltas

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    @abstractmethod
    def _read(self, events: list[ServerEvent]) -> list[Delta]: ...


# For files that a server's tool read or wrote.
_NATIVE = frozenset({"file_citation", "container_file_citation", "file_path"})


def flat_annotations(annotations: object) -> Iterator[JSONObject]:
    """URL citations in Responses API form; Chat Completions nests them in `url_citation`."""
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict):
            continue
        if str(annotation.get("type")) in _NATIVE:
            yield annotation
            continue
        inner = annotation.get("url_citation")
        fields = inner if isinstance(inner, dict) else annotation
        if isinstance(url := fields.get("url"), str):
            yield {
                "type": "url_citation",
                "url": url,
                "start_index": _count(fields.get("start_index")),
                "end_index": _count(fields.get("end_index")),
                "title": str(fields.get("title") or url),
            }


def flat_logprobs(tokens: object) -> list[JSONObject]:
    """Some servers omit the bytes, send null, or add fields."""
    return [
        {**_logprob(token), "top_logprobs": [_logprob(top) for top in json_objects(token.get("top_logprobs"))]}
        for token in json_objects(tokens)
    ]


def _logprob(token: JSONObject) -> JSONObject:
    text = str(token.get("token") or "")
    sent, logprob = token.get("bytes"), token.get("logprob")
    is_valid = isinstance(sent, list) and all(type(byte) is int for byte in sent)
    encoded = sent if is_valid else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": logprob if type(logprob) in (int, float) else 0.0, "bytes": encoded}


def _count(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int) else 0
