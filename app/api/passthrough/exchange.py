"""A request forwarded to a backend, and its response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.errors import error_event, shutdown_error
from app.api.passthrough.endpoints import ForwardedEndpoint
from app.api.uvicorn.disconnect import BodyWriter, DisconnectWatch, MessageWriter, body_writer
from app.backends import Backend, RawAnswer, RawRequest, RefusedRequest
from app.core.types import Usage
from app.core.usage import usage_of
from app.core.usage.token_estimate import estimate_json, estimate_prompt
from app.errors import APIError
from app.observability import log_context
from app.observability.lifecycle import ResponseLifecycle, clock

logger = logging.getLogger(__name__)

_PROMPTS = ("prompt", "input", "query", "documents")  # text in other endpoints' requests
# Terminal events, of which the second is Anthropic's; JSON text cannot contain their newlines.
_DONE, _MESSAGE_STOP = b"data: [DONE]\n\n", b"event: message_stop\n"
_LAST_SIZE = 200  # bytes searched at the end of a read


class PassthroughExchange:
    """
    `fields` is the JSON body.

    Errors before the first response byte are raised. Later errors end an event stream with an error event, and abort
    other responses, which would otherwise look complete.
    """

    def __init__(
        self,
        backend: Backend,
        endpoint: ForwardedEndpoint,
        request: RawRequest,
        fields: Mapping[str, object],
        lifecycle: ResponseLifecycle,
        max_seconds: float,
    ) -> None:
        self._backend = backend
        self._endpoint = endpoint
        self._request = request
        self._fields = fields
        self._lifecycle = lifecycle
        self._max_seconds = max_seconds or None
        self._answer: RawAnswer | None = None
        self._streams = False  # event stream response
        self._writer: BodyWriter | None = None  # after the headers were sent
        self._watch: DisconnectWatch | None = None
        self._charged: Usage = {}

    async def run(self, scope: Scope, receive: Receive, send: Send, *, received: bool) -> None:
        """Unless the request is fully `received`, call `watch` after its last byte."""
        task = asyncio.current_task()
        assert task
        self._new_watch = partial(DisconnectWatch, scope, receive, task.cancel)
        if received:
            self.watch()
        try:
            await self._exchange(scope, send)
        except RefusedRequest as refusal:
            response = Response(refusal.content, refusal.status)
            length = str(len(refusal.content)).encode()
            response.raw_headers = [*refusal.raw_headers, (b"content-length", length)]
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if self._watch and self._watch.disconnected and not task.uncancel():
                if self._writer is None:
                    await Response(status_code=499)(scope, receive, send)  # only for the access log
                return
            await self._end(scope, send, shutdown_error())
            raise
        except APIError as error:
            if self._writer is None:
                raise
            await self._end(scope, send, error)
        finally:
            if line := log_context.request_line():
                line.level, line.fields = self._lifecycle.end_of_log(self._lifecycle.usage or None)
            if self._watch:
                self._watch.stop()

    def watch(self) -> None:
        if self._watch is None:
            self._watch = self._new_watch()

    async def _exchange(self, scope: Scope, send: Send) -> None:
        lifecycle = self._lifecycle
        with lifecycle.watched(self._usage):
            exchange = self._backend.forward(self._request)
            try:
                with lifecycle.stoppable():
                    async with asyncio.timeout(None) as limit, exchange as answer:
                        self._answer = answer
                        self.watch()
                        if self._max_seconds:
                            limit.reschedule(asyncio.get_running_loop().time() + self._max_seconds)
                        await self._write(answer, scope, send)
                        lifecycle.response["status"] = "failed" if answer.failed() else "completed"
                        if self._watch:
                            self._watch.stop()
            except TimeoutError as error:
                message = "The response took longer than this server allows."
                raise APIError(message, status=504, code="timeout") from error

    async def _write(self, answer: RawAnswer, scope: Scope, send: Send) -> None:
        headers, piece = [*answer.headers], answer.first
        fields = dict(headers)
        if self._endpoint.anthropic and b"request-id" not in fields and (request_id := log_context.request_id()):
            headers.append((b"request-id", request_id.encode("latin-1")))  # displayed by Anthropic's SDKs
        self._streams = fields.get(b"content-type", b"").startswith(b"text/event-stream")
        if self._streams:
            self._lifecycle.first = clock()
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        length = fields.get(b"content-length", b"")
        left = int(length) - len(piece) if length.isdigit() else -1
        self._writer = writer = MessageWriter(send) if length else body_writer(scope, send)
        if not piece or left == 0:
            self._charge()
        else:
            writer.write(piece)
            await writer.drain()
            await self._write_rest(answer, writer, left)
            self._charge()
            self._lifecycle.last = clock()
            piece = b""
        await send({"type": "http.response.body", "body": piece, "more_body": False})

    async def _write_rest(self, answer: RawAnswer, writer: BodyWriter, left: int) -> None:
        """`left` is the remaining size in bytes, negative if unknown."""
        last = _MESSAGE_STOP if self._endpoint.anthropic else _DONE

        def write(piece: bytes) -> bool:
            nonlocal left
            left -= len(piece)
            # Clients stop reading at the terminal event. `find` is faster than `in`, which first tries an integer
            # conversion.
            if left == 0 or piece.find(last, -_LAST_SIZE) >= 0:
                self._charge()
            return writer.write(piece)

        while await answer.deliver(write):
            await writer.drain()
        await writer.drain()

    async def _end(self, scope: Scope, send: Send, error: APIError) -> None:
        if self._writer and self._streams:
            self._writer.write(b"\n\n" + error_event(error, scope))  # the last event may be incomplete
            await self._writer.drain()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _charge(self) -> None:
        """Called before the response's last bytes are sent."""
        self._charged = self._usage(whole=True)
        if self._charged:
            self._lifecycle.charge(self._charged)

    def _usage(self, *, whole: bool = False) -> Usage:
        """
        Reported usage. It is estimated for endpoints with a prompt, and if the client left early: the backend may have
        done all the work.
        """
        answer, lifecycle = self._answer, self._lifecycle
        if self._charged or self._endpoint.free:
            return self._charged
        reported = answer.usage() if answer else None
        if answer and reported is not None and whole and not answer.failed():
            if (cost := reported.get("cost")) is not None:
                lifecycle.attempts.costs.append(cost)
            return usage_of(reported, {}, [])
        output = answer.estimate() if answer and self._endpoint.prompts else 0
        if reported is not None:  # possibly for the prompt only
            return usage_of(reported | {"completion_tokens": max(output, reported["completion_tokens"])}, {}, [])
        left = lifecycle.failure is None and lifecycle.response["status"] != "completed"
        if not (left or output):
            return {}
        prompt = estimate_prompt(chat_prompt(self._fields)) + sum(
            estimate_json(self._fields.get(name)) for name in _PROMPTS
        )
        return usage_of({"prompt_tokens": max(1, prompt), "completion_tokens": output}, {}, [])


def chat_prompt(fields: Mapping[str, object]) -> dict[str, list[Any]]:
    """The prompt in an unvalidated body: messages, with Anthropic's `system` first, and tools."""
    messages, system = list_of(fields, "messages"), fields.get("system")
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    prompt = {"messages": messages, "tools": list_of(fields, "tools")}
    return {name: value for name, value in prompt.items() if value}


def list_of(fields: Mapping[str, object], name: str) -> list[Any]:
    return value if isinstance(value := fields.get(name), list) else []
