"""
Create ids, and find the chain that an id belongs to.

    resp_ 5f3759df5f3759df c0ffee00c0ffee00c0ffee00
          random           key of the chain

The ids of all responses and items of a chain end in its key: the store keeps a chain in one bucket, and requests of one
conversation can be routed to one server.
"""

import re
import secrets

_OWN, _KEY = 8, 12  # bytes
_ID = re.compile(rf"[a-z]+_[0-9a-f]{{{2 * _OWN}}}([0-9a-f]{{{2 * _KEY}}})")


def new_key() -> str:
    """Return the key of a new chain."""
    return secrets.token_hex(_KEY)


def new_id(prefix: str, key: str) -> str:
    """Return a new id, such as `msg_...`, in the chain with this key."""
    return f"{prefix}_{secrets.token_hex(_OWN)}{key}"


def chain_key(object_id: str) -> str | None:
    """Return the key of the chain that an id belongs to; None for ids of another format."""
    match = _ID.fullmatch(object_id)
    return match[1] if match else None


def bucket_of(owner: str, object_id: str, part: str = "") -> str | None:
    """
    Return the bucket of the chain that an id belongs to, or of a `part` stored beside it; None for ids of another
    format. Buckets of one chain are equal up to the second colon: `owner:chain`, `owner:chain:part`.
    """
    key = chain_key(object_id)
    return f"{owner}:{key}{part and ':'}{part}" if key else None
