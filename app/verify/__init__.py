"""Holds any Responses server against the specification: `antiphon verify URL`."""
