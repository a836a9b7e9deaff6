"""Ports for servers that run in processes of their own, and can only be told a number."""

from __future__ import annotations

import socket


def free_port(port: int = 0) -> int:
    """
    Return a port of this machine, or the one asked for, that goes for a minute to nobody who does not name it.

    A port that was only looked up is free again, and whoever asks for any port may get it before the server is up: a
    server of another test, which then answers in its place. So there is a connection to it that TCP waits out: the
    kernel hands the port out no more, and lets a server have it that asks for it by its number (`SO_REUSEADDR`, which
    all of them set).

    Raises `OSError` where the port asked for is taken.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        address: tuple[str, int] = listener.getsockname()
        with socket.create_connection(address) as caller:
            accepted, _ = listener.accept()
            accepted.close()  # the side that closes first gets TIME_WAIT
            caller.recv(1)
    return address[1]
