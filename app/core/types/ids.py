"""
Make ids, and read what they tell.

    resp_ 5f3759df5f3759df c0ffee00c0ffee00c0ffee00
          its own          the chain's key

Every id of a chain, of responses and of items, ends in the chain's own key. So an id leads to its chain: the store
keeps a chain in one bucket, and requests of one conversation can be routed to one place.
"""

import re
import secrets

_OWN, _KEY = 8, 12  # bytes
_ID = re.compile(rf"[a-z]+_[0-9a-f]{{{2 * _OWN}}}([0-9a-f]{{{2 * _KEY}}})")


def new_key() -> str:
    """Return the key of a new chain."""
    return secrets.token_hex(_KEY)


def new_id(prefix: str, key: str) -> str:
    """Return a new id, such as `msg_...`, in the chain of that key."""
    return f"{prefix}_{secrets.token_hex(_OWN)}{key}"


def chain_key(id: str) -> str | None:
    """Return the key of the chain that an id belongs to, or None if we never made such an id."""
    match = _ID.fullmatch(id)
    return match[1] if match else None


def bucket_of(owner: str, id: str, part: str = "") -> str | None:
    """
    Return the bucket of an owner's store that has the chain of an id, or a part that is kept beside it; None if we
    never made such an id. Buckets of one chain are alike up to the second colon: `owner:chain`, `owner:chain:part`.
    """
    key = chain_key(id)
    return f"{owner}:{key}{part and ':'}{part}" if key else None
