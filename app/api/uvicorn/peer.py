"""The address at the other end of a connection, whatever headers say."""

PEER_KEY = "peer"  # in the state of a request: (address, port) of the socket, or None for other kinds of sockets
