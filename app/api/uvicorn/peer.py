"""The peer address of a connection, independent of headers."""

PEER_KEY = "peer"  # in a request's state: (address, port) of the socket, or None for other socket types
