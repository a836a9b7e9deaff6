"""Pure code: no await, no sockets, no framework. Time and ids are arguments."""
