"""
Decode texts by their declared charset, if web pages or old documents use it.

Other Python codecs are unsafe for untrusted text: `punycode` needs quadratic time, and `idna` and `undefined` raise
errors.
"""

from __future__ import annotations

import codecs
import re
from encodings.aliases import aliases

_SINGLE_BYTE = frozenset(
    f"""
    cp437 cp850 cp852 cp866 cp874 cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8_r koi8_u
    mac_cyrillic mac_roman {" ".join(f"iso8859_{part}" for part in range(2, 17) if part != 12)}
    """.split()
)
_OTHERS = {
    "ascii",
    "big5",
    "big5hkscs",
    "cp932",
    "cp949",
    "euc_jp",
    "euc_kr",
    "gb18030",
    "gb2312",
    "gbk",
    "iso2022_jp",
}
_OTHERS |= {"latin_1", "shift_jis", "tis_620", "utf_8", "utf_16", "utf_16_be", "utf_16_le"}
_CODECS = _SINGLE_BYTE | _OTHERS
# As in browsers: such texts often contain quotation marks and dashes from Windows.
_IN_BROWSERS = {"ascii": "cp1252", "latin_1": "cp1252", "iso8859_9": "cp1254", "gb2312": "gbk", "tis_620": "cp874"}
_DECLARED = re.compile(r"charset\s*=\s*\"?([\w.:-]+)", re.IGNORECASE | re.ASCII)
_SEPARATORS = re.compile(r"[^a-z0-9]+")


def _label(name: str) -> str:
    return _SEPARATORS.sub("", name.lower())


_LABELS = {_label(name): name for name in _CODECS} | {_label(name): of for name, of in aliases.items() if of in _CODECS}
_LABELS |= {"macintosh": "mac_roman", "windows874": "cp874", "iso88598i": "iso8859_8"}


def codec_of(charset: str) -> str | None:
    """Python's codec name; None if unknown or unsafe."""
    label = _label(charset[:40])
    codec = _LABELS.get(label) or _LABELS.get(label.removeprefix("x"))
    return _IN_BROWSERS.get(codec, codec) if codec else None


def declared_charset(media_type: str) -> str | None:
    match = _DECLARED.search(media_type)
    return match[1] if match else None


def decoded(data: bytes, codec: str) -> str:
    if codec in _SINGLE_BYTE:
        characters = bytes(range(256)).decode(codec, "replace")  # so that invalid bytes decode as fast as others
        return codecs.charmap_decode(data, "strict", characters)[0]
    return data.decode(codec, "replace")
