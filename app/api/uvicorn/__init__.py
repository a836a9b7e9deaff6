"""Classes for uvicorn, and the request state that they add."""

PEER_KEY = "peer"  # request state field: (address, port) of the socket, or None for other socket types
