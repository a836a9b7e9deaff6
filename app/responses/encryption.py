"""
Seal what only this server may read, for a client to keep: the `encrypted_content` of reasoning and compaction items.

    seals = Seals(["a secret"])
    sealed = seals.seal("reasoning", owner, {"said": {"reasoning_content": "..."}})
    seals.open("reasoning", owner, sealed)

A seal is bound to its kind and to the owner it was made for. It is `antiphon1.` and, in urlsafe base64, the id of the
key, a nonce, and the AES-256-GCM of JSON that is compressed.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import orjson
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.core.stream.event_builder import EventBuilder, OpenCall, Upstream, settled
from app.core.stream.event_types import ToolBinding
from app.core.types.ids import new_id
from app.core.types.items import ITEM_TYPES, OUTPUTS, id_prefix
from app.core.types.readings import NOTES
from app.core.types.request import Item, Response
from app.errors import InvalidRequest, Warnings

logger = logging.getLogger(__name__)

ContentKind: TypeAlias = Literal["reasoning", "compaction"]

MARK = "antiphon1."
_ID, _NONCE, _KEY, _TAG = 4, 12, 32, 16  # bytes

# Bytes that the encrypted content of one request may be when it is decompressed: many times what a model can take.
MAX_CONTENT = 32 * 1024 * 1024


class ForeignKeyError(ValueError):
    """Not sealed here, or with a key that this server does not have (any more)."""


class TamperedError(ValueError):
    """Sealed with a key of this server, but changed since, or for another kind or owner."""


class ContentTooLargeError(ValueError):
    """More encrypted content than one request may have."""


class ContentBudget:
    """Counts the decompressed bytes of one request's encrypted content."""

    def __init__(self, limit: int = MAX_CONTENT) -> None:
        self._left = limit

    def take(self, size: int) -> None:
        """Count some bytes, before they are decompressed; raises `ContentTooLargeError`."""
        self._left -= size
        if self._left < 0:
            raise ContentTooLargeError


class ContentCipher:
    """
    Seals with the first of its secret keys, and opens what was sealed with any of them, so that keys can be rotated.

    A secret key is any string. With none, one is made, and what is sealed with it cannot be read after a restart.
    """

    def __init__(self, secret_keys: Sequence[str] = ()) -> None:
        self._warn = not secret_keys  # when something is first encrypted with a key that ends with this process
        pairs = [_derived(secret) for secret in secret_keys or [secrets.token_urlsafe(32)]]
        self._first, self._ciphers = pairs[0][0], dict(pairs)

    def seal(self, kind: ContentKind, owner: str, content: Mapping[str, Any]) -> str:
        """Return JSON content as a seal that only `owner` can bring back."""
        if self._warn:
            self._warn = False
            logger.warning(
                "ANTIPHON_SECRET_KEY is not set: encrypted_content can be read only by this process, until it ends"
            )
        nonce = secrets.token_bytes(_NONCE)
        packed = zstandard.ZstdCompressor(write_checksum=False).compress(orjson.dumps(content))
        closed = self._ciphers[self._first].encrypt(nonce, packed, _bound(kind, owner))
        return MARK + base64.urlsafe_b64encode(self._first + nonce + closed).rstrip(b"=").decode()

    def open(self, kind: ContentKind, owner: str, sealed: str, budget: ContentBudget | None = None) -> dict[str, Any]:
        """
        Return what was sealed.

        Raises `ForeignKeyError` if it was not sealed with our keys, `TamperedError` if it was changed, and
        `ContentTooLargeError` if it does not fit into what is left of the `budget`.
        """
        if not sealed.startswith(MARK):
            raise ForeignKeyError
        data = _decoded(sealed.removeprefix(MARK))
        cipher = self._ciphers.get(data[:_ID])
        if cipher is None:
            raise ForeignKeyError
        nonce, closed = data[_ID : _ID + _NONCE], data[_ID + _NONCE :]
        if len(closed) < _TAG:
            raise TamperedError
        try:
            packed = cipher.decrypt(nonce, closed, _bound(kind, owner))
        except InvalidTag:
            raise TamperedError from None
        if budget:
            budget.take(zstandard.frame_content_size(packed))
        content: dict[str, Any] = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
        return content


def _derived(secret: str) -> tuple[bytes, AESGCM]:
    """Return the id of a secret key, and the cipher that it makes."""
    info = b"antiphon encrypted_content 1"
    derived = HKDF(algorithm=SHA256(), length=_KEY + _ID, salt=None, info=info).derive(secret.encode())
    return derived[_KEY:], AESGCM(derived[:_KEY])


def _bound(kind: str, owner: str) -> bytes:
    return f"{MARK}\n{kind}\n{owner}".encode()


def _decoded(text: str) -> bytes:
    try:
        # Strictly: the same bytes in another spelling are no seal of ours.
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TamperedError from None
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise TamperedError
    return data


# Notes of a call without which the model would be shown something else.
_SHOWN = frozenset({"output", "arguments"})


class EncryptingEventBuilder(EventBuilder):
    """
    An `EventBuilder` whose reasoning items have their `encrypted_content`.

    What a backend says beside a tool call (Gemini's signatures) has to come back, too, and a call has no field that a
    client would keep it in: it goes into the seal of the reasoning before the call, or of a reasoning item of its own.
    What the model was shown of a hosted tool's result, and the item does not say, goes into one behind the calls.
    """

    def __init__(self, response: Response, *, seal: Callable[[dict[str, Any]], str], **options: Any) -> None:
        super().__init__(response, seal=self._sealed, **options)
        self._seal_whole = seal
        self._beside: dict[str, Upstream] = {}  # what was said beside calls and is not sealed yet, by `call_id`

    def call(self, call_id: str, callee: ToolBinding, **upstream: Any) -> OpenCall:
        if upstream and callee.kind.call_id:  # what is beside a hosted call is sealed with its result
            self._beside[call_id] = upstream
            if not self._is_thinking:
                self._add_signature()
        return super().call(call_id, callee, **upstream)

    def seal_calls(self, item_ids: Iterable[str]) -> None:
        """Seal what is noted of calls that were run, as far as their items do not say it, in a reasoning item."""
        for id in item_ids:
            upstream = self.upstream.get(id, {})
            if upstream.get(NOTES, {}).keys() & _SHOWN or upstream.keys() - {NOTES}:
                self._beside[id] = settled(upstream)
        if self._beside:
            self._add_signature()

    def reasoning_upstream(self) -> Upstream:
        """Return what is said for the open item; an item that is sealed takes nothing more, so another follows it."""
        item = (self._open if self._is_thinking and self._open else self._open_for(self._reasoning)).item
        return self.upstream.setdefault(item["id"], {})

    @property
    def _is_thinking(self) -> bool:
        return self._open is not None and self._open.item["type"] == "reasoning"

    def _add_signature(self) -> None:
        """Add a reasoning item that says nothing, and has its seal."""
        self._close_open("completed")
        item: Item = {"type": "reasoning", "id": self.new_id("rs"), "summary": [], "status": "in_progress"}
        index = self._add(item)
        self._done(index, {**item, "status": "completed", "encrypted_content": self._sealed({})})

    def _sealed(self, said: Upstream) -> str:
        beside, self._beside = self._beside, {}
        return self._seal_whole({"said": said, "calls": beside} if beside else {"said": said})


def decrypt_items(
    items: Sequence[Item],
    seals: ContentCipher,
    owner: str,
    *,
    key: str,
    known: Mapping[str, Upstream],
    warnings: Warnings,
    field: str = "input",
) -> tuple[list[Item], dict[str, Upstream]]:
    """
    Open the `encrypted_content` of input items, which stand in that `field` of the request.

    Returns the items, each of those that had one with an id, and what was in it by that id, as `to_chat` wants it:
    what the backend said for reasoning and calls, and the summary of a compaction. Items whose ids are `known` need no
    opening. Raises `InvalidRequest` with the field at fault, also if all content together is larger than `MAX_CONTENT`.

    Reasoning that was sealed elsewhere, or with a key that is gone, is passed over with a warning: an agent replays it
    for ever, and would be dead for ever if it were refused. A compaction holds the conversation, so it is not.
    """
    opened: list[Item] = []
    said: dict[str, Upstream] = {}
    beside: dict[str, Upstream] = {}
    budget = ContentBudget()
    for index, item in enumerate(items):
        sealed = item.get("encrypted_content")
        row = ITEM_TYPES.get(item["type"])
        if row and row.sealed and sealed and item.get("id") not in known:
            param = f"{field}[{index}].encrypted_content"
            content = _open(seals, row.sealed, owner, sealed, param, warnings, budget)
            if content is not None:
                item = _with_id(item, key)
                said[item["id"]] = content.get("said", content)
                beside |= content.get("calls", {})
        opened.append(item)
    for index, item in enumerate(opened if beside else ()):
        names = [name for name in (item.get("call_id"), item.get("id")) if name in beside]
        if names and item["type"] not in OUTPUTS and item.get("id") not in known:
            opened[index] = item = _with_id(item, key)
            said[item["id"]] = beside[names[0]]
    return opened, said


def _open(
    seals: ContentCipher,
    kind: ContentKind,
    owner: str,
    sealed: str,
    param: str,
    warnings: Warnings,
    budget: ContentBudget,
) -> dict[str, Any] | None:
    try:
        return seals.open(kind, owner, sealed, budget)
    except ContentTooLargeError:
        raise InvalidRequest(
            f"Invalid '{param}': up to here, the encrypted content of this input is more than "
            f"{MAX_CONTENT // 1024**2} MiB when it is decompressed. Leave out the oldest of these items, or compact "
            "the conversation.",
            param=param,
            code="encrypted_content_too_large",
        ) from None
    except ForeignKeyError:
        if kind == "reasoning":
            warnings.add("Encrypted reasoning that this server cannot read was left out.")
            return None
    except TamperedError:
        pass
    raise InvalidRequest(
        f"Invalid '{param}': it was changed, or made by another server, with another key or for another caller.",
        param=param,
        code="invalid_encrypted_content",
    )


def _with_id(item: Item, key: str) -> Item:
    return item if item.get("id") else {**item, "id": new_id(id_prefix(item["type"]), key)}
