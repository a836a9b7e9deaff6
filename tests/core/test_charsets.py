"""Charsets in received texts."""

from __future__ import annotations

import pytest

from app.core.charsets import _CODECS, codec_of, declared_charset, decoded


@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        ("utf-8", "utf_8"),
        ("UTF8", "utf_8"),
        ("iso-8859-1", "cp1252"),
        ("us-ascii", "cp1252"),
        ("windows-1251", "cp1251"),
        ("x-cp1251", "cp1251"),
        ("Shift_JIS", "shift_jis"),
        ("x-sjis", "shift_jis"),
        ("gb2312", "gbk"),
        ("iso-8859-8-i", "iso8859_8"),
        ("macintosh", "mac_roman"),
    ],
)
def test_charset_of_the_web_has_its_codec(charset: str, codec: str) -> None:
    assert codec_of(charset) == codec


@pytest.mark.parametrize(
    "charset",
    [
        "punycode",
        "idna",
        "undefined",
        "unicode_escape",
        "raw-unicode-escape",
        "utf-7",
        "rot13",
        "zlib",
        "mbcs",
        "",
        "é",
    ],
)
def test_charset_that_is_none_of_the_web_has_no_codec(charset: str) -> None:
    assert codec_of(charset) is None


@pytest.mark.parametrize("codec", sorted(filter(None, map(codec_of, _CODECS))))
def test_every_codec_decodes_any_bytes(codec: str) -> None:
    text = decoded(bytes(range(256)) * 3 + b"\xff", codec)
    assert text == (bytes(range(256)) * 3 + b"\xff").decode(codec, "replace")


@pytest.mark.parametrize(
    ("media_type", "charset"),
    [
        ("text/html; charset=utf-8", "utf-8"),
        ('text/html;Charset = "ISO-8859-1"; a=b', "ISO-8859-1"),
        ("text/html", None),
        ("text/html; charset=", None),
    ],
)
def test_media_type_declares_its_charset(media_type: str, charset: str | None) -> None:
    assert declared_charset(media_type) == charset
