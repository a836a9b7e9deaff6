"""A connection's peer address, independent of headers."""

PEER_KEY = "peer"  # request state field: (address, port) of the socket, or None for other socket types
