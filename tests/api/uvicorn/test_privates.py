"""Private uvicorn names in use: each is listed here and exists in uvicorn."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from pathlib import Path

import httptools
import pytest
import uvicorn
import websockets.protocol
import websockets.streams
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.websockets import websockets_sansio_impl
from uvicorn.supervisors.multiprocess import Multiprocess

from app.api.uvicorn.http import HTTPProtocol, ResponseWriter
from app.api.uvicorn.websocket import WebSocketProtocol
from app.cli.serve import _Server, _Workers

# Our subclass of a uvicorn class: the inherited names it uses, and the methods it overrides, which uvicorn must call.
USED = {
    HTTPProtocol: {
        *("app_state", "client", "cycle", "flow", "headers", "logger", "loop", "parser", "scope"),
        *("timeout_keep_alive", "timeout_keep_alive_handler", "timeout_keep_alive_task", "transport", "url"),
        *("_should_upgrade", "_start_asgi_task", "_unset_keepalive_if_required"),
        *("handle_websocket_upgrade", "connection_made", "connection_lost", "data_received", "on_message_begin"),
        *("on_headers_complete", "on_body", "on_message_complete", "on_response_complete", "shutdown"),
    },
    WebSocketProtocol: {
        *("app_state", "close_sent", "close_timer", "conn", "curr_msg_data_type", "frames", "handshake_complete"),
        "logger",
        *("loop", "queue", "read_paused", "transport"),
        *("data_received", "handle_bytes", "handle_cont", "handle_ping", "handle_pong", "handle_text"),
        *("keepalive_timeout", "receive", "send_receive_event_to_app", "shutdown"),
    },
    _Server: {"shutdown"},
    _Workers: {"processes", "signal_queue", "sockets", "handle_hup", "handle_signals", "terminate_all"},
}
CYCLE = {"disconnected", "keep_alive", "more_body", "response_complete"}  # of `HTTPProtocol.cycle`, a request
WRITTEN = {  # of `ResponseWriter`'s request
    *("chunked_encoding", "default_headers", "disconnected", "expected_content_length", "flow", "keep_alive"),
    *("message_event", "on_response", "response_complete", "response_started", "scope", "transport"),
    "waiting_for_100_continue",
}


def used_by(ours: type) -> set[str]:
    """Names that our class uses on itself or its base without defining them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(ours)))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_own(node.value)}
    above = ours.__mro__[1]
    return {name for name in names | vars(ours).keys() if name not in vars(ours) or name in dir(above)} - set(
        dir(object)
    )


def _is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Name):
        return value.id == "self"
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"


def has(theirs: type) -> set[str]:
    """A class's names: defined, inherited, or assigned by its methods."""
    names = set(dir(theirs))
    for one in theirs.__mro__[:-1]:
        if one.__module__.startswith("uvicorn"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_own(node.value)}
    return names


@pytest.mark.parametrize("ours", USED, ids=lambda ours: ours.__name__)
def test_private_names_of_uvicorn_that_are_used_exist(ours: type) -> None:
    private = {name for name in used_by(ours) if not name.startswith("__")} - {"_abc_impl", "_reader", "unread"}
    assert private == USED[ours]
    assert USED[ours] <= has(ours.__mro__[1])


def test_request_and_answer_of_uvicorn_have_the_fields_that_are_used() -> None:
    source = Path(inspect.getfile(HTTPProtocol)).read_text()
    cycles = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "cycle"
    }
    assert cycles == CYCLE <= has(httptools_impl.RequestResponseCycle)


def test_request_of_uvicorn_has_the_fields_that_the_response_writer_uses() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(ResponseWriter)))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("cycle", "self._cycle")
    }
    assert used == WRITTEN <= has(httptools_impl.RequestResponseCycle)


def test_frame_parser_of_websockets_awaits_each_frame_by_the_method_that_is_overridden() -> None:
    protocol = websockets.protocol.Protocol(websockets.protocol.SERVER)
    assert isinstance(protocol.reader, websockets.streams.StreamReader)
    assert inspect.isgeneratorfunction(websockets.streams.StreamReader.at_eof)
    assert "self.reader.at_eof()" in inspect.getsource(protocol.parse)
    assert inspect.isgenerator(protocol.parser)


def test_overridden_methods_are_those_that_uvicorn_calls() -> None:
    assert set(httptools_impl.STATUS_LINE) >= {200, 400, 431, 503}
    assert issubclass(websockets_sansio_impl.WebSocketsSansIOProtocol, asyncio.Protocol)
    assert {"handle_hup", "handle_signals", "terminate_all"} <= set(vars(Multiprocess))
    assert "sockets" in inspect.signature(uvicorn.Server.run).parameters
    # The parser calls these by name where its protocol has them.
    assert {"on_message_begin", "on_headers_complete", "on_body", "on_message_complete"} <= set(dir(HTTPProtocol))
    assert hasattr(httptools.HttpRequestParser, "set_dangerous_leniencies")
