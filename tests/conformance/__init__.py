"""Antiphon and other servers, held against the specification by `antiphon verify`: `make conformance`."""
