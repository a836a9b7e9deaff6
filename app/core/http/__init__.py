"""The meaning of HTTP headers, without I/O."""
