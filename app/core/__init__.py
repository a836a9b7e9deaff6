"""The pure part: no await, no sockets, no framework. Time and ids come in as arguments."""
