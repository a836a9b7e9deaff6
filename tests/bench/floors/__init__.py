"""Servers with a part of Antiphon's work, to show its cost: forwarding bytes, and translating."""
