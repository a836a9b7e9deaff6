"""Antiphon: the Open Responses API, answered by any Chat Completions backend."""

__version__ = "0.2.0"
