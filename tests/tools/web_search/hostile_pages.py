"""Pages designed to harm the reading server."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from typing import NamedTuple

SIZE = 1_900_000  # bytes; of a page 2 MB are read


def html(body: str, head: str = "<title>A page</title>") -> bytes:
    return f"<html><head>{head}</head><body>{body}".encode()[:SIZE]


def again(piece: str) -> bytes:
    """HTML with the same piece again and again."""
    return html(piece * (SIZE // len(piece.encode())))


def entities() -> bytes:
    """Nested entities."""
    names = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "word "}">' for n in range(10)]
    return f'<?xml version="1.0"?><!DOCTYPE html [{"".join(names)}]><html><body><p>&e9;</p></body></html>'.encode()


def punycode(size: int = SIZE) -> bytes:
    return b"\xe9-" + b"a" * (size - 2)


class Page(NamedTuple):
    """A page as sent; `shown` is part of the model's view."""

    make: Callable[[], bytes]
    shown: str
    type: str = "text/html"
    pattern: str | None = None  # looked for in it; None: the page is opened
    encoding: str | None = None


NO_TEXT = "The page has no text."
TEXT = "text/plain"

PAGES = {
    # Searches.
    "one letter, and many of it": Page(lambda: b"a" * SIZE, "of at most 1000 characters", TEXT, "a" * 8000),
    "one letter, and others at the end": Page(
        lambda: b"a" * SIZE, "does not contain the text", TEXT, "a" * 500 + "b" + "a" * 499
    ),
    "one letter, and another at the beginning": Page(
        lambda: b"a" * SIZE, "does not contain the text", TEXT, "b" + "a" * 999
    ),
    "periods": Page(lambda: b"ab" * (SIZE // 2), "does not contain the text", TEXT, "ab" * 499 + "ba"),
    "letters that grow when folded": Page(lambda: "ß".encode() * (SIZE // 2), "ßßß", TEXT, "ßß"),
    "a capital letter with a dot": Page(lambda: ("İ" * 1000 + "needle").encode(), "İneedle", TEXT, "İNEEDLE"),
    "a pattern of an expression": Page(lambda: b"(a+)+$" * 1000, "(a+)+$", TEXT, "(a+)+$"),
    # Charsets.
    "punycode": Page(punycode, "é-aaa", f"{TEXT}; charset=punycode"),
    "punycode in HTML": Page(lambda: html("<p>word") + punycode(), "word", "text/html; charset=punycode"),
    "punycode that the page declares": Page(lambda: html("<p>word", "<meta charset=punycode>") + b"\xe9", "word"),
    "undefined": Page(lambda: b"caf\xe9", "café", f"{TEXT}; charset=undefined"),
    "idna": Page(lambda: b"caf\xe9", "café", f"{TEXT}; charset=idna"),
    "a module of Python": Page(lambda: b"caf\xe9", "café", f"{TEXT}; charset=antigravity"),
    "bytes that are in no charset": Page(lambda: b"\x81" * SIZE, "\ufffd\ufffd", f"{TEXT}; charset=windows-1255"),
    "an old charset, declared by the server": Page(
        lambda: "<p>Привет, мир".encode("koi8-r"), "Привет, мир", "text/html; charset=koi8-r"
    ),
    "an old charset, declared by the page": Page(
        lambda: (
            html("", '<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">')
            + "<p>こんにちは".encode("shift_jis")
        ),
        "こんにちは",
    ),
    "UTF-16": Page(lambda: "<p>Hello.".encode("utf-16"), "Hello."),
    # HTML.
    "paragraphs without an end": Page(lambda: again("<p>a"), "a\n"),
    "lines": Page(lambda: again("a<br>"), "a\n"),
    "headings": Page(lambda: again("<h1>a</h1>"), "a\n"),
    "elements within elements": Page(lambda: again("<div>"), NO_TEXT),
    "links within tables within lists": Page(lambda: again("<ul><li><table><tr><td><a href=/>"), NO_TEXT),
    "cells": Page(lambda: again("<table><tr><td>a</td><td>b</td></tr></table>"), "a"),
    "attributes": Page(lambda: html("<p " + " ".join(f"a{n}=b" for n in range(20_000)) + ">word"), "word"),
    "references": Page(lambda: again("&amp;&#x41;&nosuch;"), "&A"),
    "entities of entities": Page(entities, ""),
    "comments": Page(lambda: again("<!--"), NO_TEXT),
    "spaces": Page(lambda: html("<p>one" + "\u00a0" * (SIZE // 2) + "two"), "one"),
    "angle brackets": Page(lambda: again("<"), "<"),
    "quotation marks": Page(lambda: again('<a href="'), ""),
    "metadata": Page(lambda: html("<p>word", "<meta name=author content='a b'>" * 30_000), "word"),
    "metadata in JSON": Page(
        lambda: html(
            "<p>word", '<script type="application/ld+json">' + '{"@type":"Person","name":"' * 50_000 + "</script>"
        ),
        "word",
    ),
    "a long title": Page(lambda: html("<p>word", f"<title>{'t' * 1_000_000}</title>"), "t" * 300 + "\n"),
    "a reload": Page(lambda: html("", "<meta http-equiv=refresh content='0; url=http://127.0.0.1/'>"), NO_TEXT),
    "NULs": Page(lambda: b"\0" * SIZE, "\ufffd"),
    "nothing": Page(lambda: b"", NO_TEXT),
    "no HTML": Page(lambda: os.urandom(SIZE), ""),
    "half a character": Page(lambda: html("<p>word") + "é".encode()[:1], "word"),
    # Other types.
    "XML": Page(entities, "ENTITY", "application/xml"),
    "JSON": Page(lambda: b"[" * SIZE, "[[[", "application/json"),
    "a PDF": Page(lambda: b"%PDF-1.7", "its type is application/pdf", "application/pdf"),
    "a long type": Page(lambda: b"", "its type is x/yyy", "x/" + "y" * 10_000),
    # Transfer.
    "a bomb": Page(lambda: gzip.compress(b"a" * 50_000_000), "larger than 2000000 bytes", TEXT, None, "gzip"),
    "no gzip": Page(lambda: b"\x1f\x8b" + b"\0" * 1000, "cannot be decompressed", TEXT, None, "gzip"),
    "an encoding": Page(lambda: b"word", "encoding that was not requested", TEXT, None, "br"),
}
