"""The peer address of a connection, independent of headers."""

PEER_KEY = "peer"  # request state field: (address, port) of the socket, or None for other socket types
