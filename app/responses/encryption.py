"""
Encryption of client-held data: `encrypted_content` in reasoning and compactions.

    cipher = ContentCipher(["a secret"])
    encrypted = cipher.encrypt("reasoning", owner, {"upstream": {"reasoning_content": "..."}})
    compressed = cipher.decrypt("reasoning", owner, encrypted)

Content is bound to its kind and owner: `antiphon1.`, then in urlsafe base64 the key id, a nonce, and the AES-256-GCM
ciphertext of compressed JSON.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import orjson
import zstandard

from app.core.bounded_json import dumps
from app.core.history.compaction import CONTENT_MARK
from app.core.ids import new_id
from app.core.items import ITEM_TYPES, OUTPUTS, id_prefix
from app.core.stream.event_builder import Upstream
from app.core.stream.reasoning_fields import PROVIDER_FIELDS, PROVIDER_FIELDS_V1
from app.core.types import JSONMapping, JSONObject
from app.core.types.request import Item
from app.errors import InvalidRequest, Warnings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

logger = logging.getLogger(__name__)

ContentKind: TypeAlias = Literal["reasoning", "compaction"]

_ID, _NONCE, _KEY, _TAG = 4, 12, 32, 16  # bytes

# Marks items from a thinking block's signature. Agents resend these every turn, so invalid ones are dropped.
FROM_SIGNATURE = "antiphon:from_signature"

# Maximum decompressed bytes per request: far beyond any model's context.
MAX_CONTENT = 32 * 1024 * 1024


class ContentCipher:
    """
    Encrypts with the first secret key and decrypts with any, for key rotation.

    Keys are any strings. By default, the key is random, and content is unreadable after a restart.
    """

    def __init__(self, secret_keys: Sequence[str] = ()) -> None:
        self._warn = not secret_keys  # the first encryption with a random key logs a warning
        self._secrets = secret_keys or [secrets.token_urlsafe(32)]

    @cached_property
    def _ciphers(self) -> dict[bytes, AESGCM]:
        """Ciphers by key id, the first key first. `cryptography` is imported here: it needs 8 MB."""
        return dict(map(_derived, self._secrets))

    def encrypt(self, kind: ContentKind, owner: str, content: JSONMapping) -> str:
        if self._warn:
            self._warn = False
            logger.warning(
                "ANTIPHON_SECRET_KEY not set: encrypted_content is readable only by this process, until it exits"
            )
        nonce = secrets.token_bytes(_NONCE)
        packed = zstandard.ZstdCompressor(write_checksum=False).compress(dumps(content))
        key_id, cipher = next(iter(self._ciphers.items()))
        ciphertext = cipher.encrypt(nonce, packed, _associated_data(kind, owner))
        return CONTENT_MARK + base64.urlsafe_b64encode(key_id + nonce + ciphertext).rstrip(b"=").decode()

    def decrypt(self, kind: ContentKind, owner: str, encrypted: str) -> bytes | None:
        """
        The content as compressed JSON; None if the key is unknown, for example another server's.

        Raises `ValueError` if the content was changed, or belongs to another kind or owner.
        """
        if not encrypted.startswith(CONTENT_MARK):
            return None
        text = encrypted.removeprefix(CONTENT_MARK)
        # Strict: other encodings of the same bytes are rejected.
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
            raise ValueError("encoded differently")
        cipher = self._ciphers.get(data[:_ID])
        if cipher is None:
            return None
        nonce, ciphertext = data[_ID : _ID + _NONCE], data[_ID + _NONCE :]
        if len(ciphertext) < _TAG:
            raise ValueError("too short")
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(nonce, ciphertext, _associated_data(kind, owner))
        except InvalidTag:
            raise ValueError("not authentic") from None


def _derived(secret: str) -> tuple[bytes, AESGCM]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"antiphon encrypted_content 1"
    derived = HKDF(algorithm=SHA256(), length=_KEY + _ID, salt=None, info=info).derive(secret.encode())
    return derived[_KEY:], AESGCM(derived[:_KEY])


def _associated_data(kind: str, owner: str) -> bytes:
    return f"{CONTENT_MARK}\n{kind}\n{owner}".encode()


def decrypt_items(
    items: Sequence[Item],
    cipher: ContentCipher,
    owner: str,
    *,
    key: str,
    known: Mapping[str, Upstream],
    warnings: Warnings,
    field: str = "input",
) -> tuple[list[Item], dict[str, Upstream]]:
    """
    Decrypt the input items' `encrypted_content`; `field` is the request field. Decrypting 24 MB takes 0.2 s.

    Returns the items, and the content by item id for `to_chat`: backend fields of reasoning and calls, and summaries.
    Items without an id get an id; `known` items are skipped. Raises `InvalidRequest` with the field's name, also beyond
    `MAX_CONTENT`.

    Agents resend content every turn, so a rejection would end their conversation. Reasoning from another server, or
    with a lost key, is dropped with a warning, and a compaction becomes a note. Items marked `FROM_SIGNATURE` also lose
    changed content and another owner's.
    """
    decrypted: list[Item] = []
    upstream: dict[str, Upstream] = {}
    calls: dict[str, Upstream] = {}
    left = MAX_CONTENT
    for index, item in enumerate(items):
        encrypted = item.get("encrypted_content")
        row = ITEM_TYPES.get(item["type"])
        if row and row.encrypted and encrypted and item.get("id") not in known:
            param = f"{field}[{index}].encrypted_content"
            packed = None
            try:
                packed = cipher.decrypt(row.encrypted, owner, encrypted)
                if packed is None and row.encrypted == "reasoning":
                    warnings.add("Encrypted reasoning that this server cannot read was dropped.")
            except ValueError:
                if FROM_SIGNATURE not in item:
                    message = f"Invalid '{param}': must be unmodified, and created for this caller."
                    raise InvalidRequest(message, param=param, code="invalid_encrypted_content") from None
                warnings.add("A thinking block's signature that is invalid, or belongs to another caller, was dropped.")
            if packed is not None:
                left -= zstandard.frame_content_size(packed)
                if left < 0:
                    message = (
                        f"Invalid '{param}': the encrypted content up to this item exceeds {MAX_CONTENT // 1024**2} "
                        "MiB when decompressed. Omit the oldest encrypted items, or compact the conversation."
                    )
                    raise InvalidRequest(message, param=param, code="encrypted_content_too_large")
                content: JSONObject = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
                item = _with_id(item, key)
                earlier: Upstream = content.get(PROVIDER_FIELDS_V1, content)
                upstream[item["id"]] = content.get(PROVIDER_FIELDS, earlier)
                calls |= content.get("calls", {})
        decrypted.append(item)
    for index, item in enumerate(decrypted if calls else ()):
        names = [name for name in (item.get("call_id"), item.get("id")) if name in calls]
        if names and item["type"] not in OUTPUTS and item.get("id") not in known:
            decrypted[index] = item = _with_id(item, key)
            upstream[item["id"]] = calls[names[0]]
    return decrypted, upstream


def _with_id(item: Item, key: str) -> Item:
    return item if item.get("id") else {**item, "id": new_id(id_prefix(item["type"]), key)}
