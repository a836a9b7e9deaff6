"""Ports for servers in other processes, which need a number."""

from __future__ import annotations

import socket


def free_port(port: int = 0) -> int:
    """
    Return a local port, or the given one, and reserve it for a minute.

    A free port could be assigned to another process before the server starts, and another test's server would answer.
    So this function leaves a connection in TIME_WAIT: the kernel no longer assigns the port, but servers with
    `SO_REUSEADDR`, as all of them have, can bind it by number.

    Raises `OSError` if the given port is taken.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        address: tuple[str, int] = listener.getsockname()
        with socket.create_connection(address) as caller:
            accepted, _ = listener.accept()
            accepted.close()  # the side that closes first gets TIME_WAIT
            caller.recv(1)
    return address[1]
