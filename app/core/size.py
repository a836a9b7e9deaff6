"""
Limits above which a request is parsed and translated in a thread, while other requests are served.

On one core of 2026, a text of 1 MiB takes 2 ms to parse, translate and encode, or 12 ms if it consists of unpaired
surrogates. Messages with 5,000 commas in their JSON take 10 ms.
"""

from __future__ import annotations

LARGE = 1024 * 1024  # bytes or characters
MANY = 5000  # JSON values


def is_large(*documents: bytes) -> bool:
    """Return whether JSON documents have more bytes or values than the limits."""
    size = sum(map(len, documents))
    return size > LARGE or (size > MANY and sum(document.count(b",") for document in documents) > MANY)
