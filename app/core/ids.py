"""
Create ids, and find an id's chain.

    resp_ 5f3759df5f3759df c0ffee00c0ffee00c0ffee00
          random           chain key

The store keeps a chain in one partition, and a conversation's requests can be routed to the same server.
"""

import re
import secrets
import struct

_OWN, _KEY = 16, 24  # digits
_ID = re.compile(rf"[a-z]+_[0-9a-f]{{{_OWN}}}([0-9a-f]{{{_KEY}}})")

_RANDOM = struct.Struct("16s" * 256)
# One system call for 256 ids. `app.runtime.process` clears the list in forked processes.
UNUSED_DIGITS: list[str] = []


def random_digits() -> str:
    """32 hexadecimal digits."""
    try:
        return UNUSED_DIGITS.pop()  # atomic: threads create ids, too
    except IndexError:
        first, *others = map(bytes.hex, _RANDOM.unpack(secrets.token_bytes(_RANDOM.size)))
        UNUSED_DIGITS.extend(others)
        return first


def new_key() -> str:
    return random_digits()[:_KEY]


def new_id(prefix: str, key: str) -> str:
    return f"{prefix}_{random_digits()[:_OWN]}{key}"


def chain_key(object_id: str) -> str | None:
    match = _ID.fullmatch(object_id)
    return match[1] if match else None


def partition_of(owner: str, object_id: str, part: str = "") -> str | None:
    """
    The partition of an id's chain, or of its separately stored `part`; None for other id formats.

    A chain's partitions are equal up to the second colon: `owner:chain`, `owner:chain:part`.
    """
    key = chain_key(object_id)
    return f"{owner}:{key}{part and ':'}{part}" if key else None
