"""
Checks that a form can be read in one way only: the model that is checked has to be the one that the backend reads.

Parsers of forms differ: in what they take for a delimiter, in headers that they decode, in what may come before the
form and behind it. What clients send needs none of that, so whatever could be read in two ways is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.api.multipart import FormPart
from app.errors import InvalidRequest

_TOKEN = rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
# A boundary is plain characters, in quotation marks if some of them need these (RFC 2046, 5.1.1), but no spaces.
_PLAIN = rb"[A-Za-z0-9'+_.=-]{1,200}"
_BOUNDARY = rb"boundary=(?:(?P<plain>%b)|\"(?P<quoted>[A-Za-z0-9'()+_,./:=?-]{1,200})\")" % _PLAIN
_CONTENT_TYPE = re.compile(
    rb"multipart/form-data(?:[ \t]*;[ \t]*charset=\"?utf-?8\"?)?[ \t]*;[ \t]*%b(?:[ \t]*;[ \t]*charset=\"?utf-?8\"?)?"
    % _BOUNDARY,
    re.IGNORECASE,
)
# Without backslashes, which only some parsers take for escapes; `filename*` (RFC 5987) is what .NET sends.
_DISPOSITION = re.compile(
    rb'form-data(?:;[ ]?(?:name|filename)=(?:%b|"[^"\\]*")|;[ ]?filename\*=%b)+' % (_TOKEN, _TOKEN), re.IGNORECASE
)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ENCODINGS = (b"7bit", b"8bit", b"binary")
_LIKE_MODEL = re.compile(r"[\W_]*".join(["", *"model", ""]), re.IGNORECASE)
_TEXT = re.compile(rb"text/plain(?:[ ]?;[ ]?charset=\"?(?:utf-?8|us-ascii)\"?)?", re.IGNORECASE)


def form_boundary(content_types: Sequence[bytes]) -> bytes | None:
    """
    Return the boundary of a form by the headers `Content-Type` of its request; None if it is no form.

    Raises `InvalidRequest` for a form whose boundary could be read in two ways.
    """
    if not any(value.lstrip().lower().startswith(b"multipart/form-data") for value in content_types):
        return None
    match = _CONTENT_TYPE.fullmatch(content_types[0].strip())
    if match is None or len(content_types) > 1:
        raise ambiguous("'Content-Type' must be 'multipart/form-data; boundary=...', once, and nothing else")
    return match["plain"] or match["quoted"]


def form_type(boundary: bytes) -> bytes:
    """Return the value of `Content-Type` for a form with this boundary."""
    plain = re.fullmatch(_PLAIN, boundary)
    return b"multipart/form-data; boundary=" + (boundary if plain else b'"%b"' % boundary)


def check_part(part: FormPart) -> None:
    """Raise `InvalidRequest` for a part of a form whose name or value could be read in two ways."""
    names = [name for name, _ in part.headers if name.startswith(b"content-")]
    if len(set(names)) < len(names) or any(_CONTROL.search(value) for _, value in part.headers):
        raise ambiguous("a part has a header twice, or one with control characters")
    headers = dict(part.headers)
    disposition = headers[b"content-disposition"].rstrip(b" \t;")
    fields = [field.strip().partition(b"=")[0].lower() for field in _unquoted(disposition).split(b";")[1:]]
    if not _DISPOSITION.fullmatch(disposition) or len(set(fields)) < len(fields):
        raise ambiguous("a part has a 'Content-Disposition' other than 'form-data' with 'name' and 'filename'")
    content_type = headers.get(b"content-type", b"text/plain").strip()
    if headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in _ENCODINGS:
        raise ambiguous("a part has a 'Content-Transfer-Encoding'")
    if content_type.lower().startswith(b"multipart/"):
        raise ambiguous("a part is a form itself")
    if part.name == "_charset_":
        raise ambiguous("it declares a character set in '_charset_'")
    if part.name == "model":
        if part.filename is not None or b"filename" in disposition.lower() or not _TEXT.fullmatch(content_type):
            raise ambiguous("the field 'model' is not plain text in UTF-8")
    elif reads_as_model(part.name):
        raise ambiguous(f"the field {part.name[:64]!r} could be taken for 'model'")


def reads_as_model(name: str) -> bool:
    """Return whether some parsers may take a name other than `model` for it, such as `Model`, `model[]` or ` model`."""
    return name != "model" and _LIKE_MODEL.fullmatch(name) is not None


class Delimiters:
    """
    Checks the delimiters of a form as it arrives: each is a line of its own, the first begins the form, and nothing is
    behind the last one.
    """

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"--" + boundary
        self._held = b"\r\n"  # bytes that may belong to a delimiter, and the two before it
        self._begun = False
        self._behind: bytes | None = None  # what came behind the last delimiter

    def feed(self, data: bytes) -> None:
        """Check the next bytes; raises `InvalidRequest`."""
        if self._behind is None:
            data = self._search(self._held + data)
        if self._behind is not None:
            self._behind += data[:3]
            if not b"\r\n".startswith(self._behind):
                raise ambiguous("there is data after its end")

    def _search(self, text: bytes) -> bytes:
        """Check all delimiters in a text; return what is behind the last one of the form."""
        delimiter = self._delimiter
        if not self._begun and len(text) > len(delimiter) + 1:
            self._begun = True
            if text.find(delimiter) != 2:
                raise ambiguous("there is data before its first boundary")
        at = text.find(delimiter)
        while at >= 0 and (end := at + len(delimiter)) + 2 <= len(text):
            after = text[end : end + 2]
            if text[at - 2 : at] != b"\r\n" or after not in (b"\r\n", b"--"):
                raise ambiguous("its boundary is part of a line")
            if after == b"--":
                self._behind = b""
                return text[end + 2 :]
            at = text.find(delimiter, end)
        self._held = text[at - 2 if at >= 0 else max(0, len(text) - len(delimiter) - 1) :]
        return b""


def _unquoted(value: bytes) -> bytes:
    return re.sub(rb'"[^"]*"', b"", value)


def ambiguous(reason: str) -> InvalidRequest:
    """Return the error of a form that could be read in two ways."""
    return InvalidRequest(f"The form could be read in several ways: {reason}.", code="invalid_body")
