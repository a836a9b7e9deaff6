"""Antiphon: the Open Responses API, answered by any model server."""

__version__ = "0.2.0"
