"""
Requests that try to use a forbidden model, or to mean different things to this server and to the backend. Raw HTTP.

The key may use the model `m1`. The word `secret-model` must not reach the backend anywhere, unless the row allows it.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any, NamedTuple

ALLOWED, FORBIDDEN = b"m1", b"secret-model"
REFUSED, DENIED, CLEANED = 400, 403, 200


class Attack(NamedTuple):
    """A request and its status: refused, or 200 if it is forwarded without the forbidden part."""

    status: int
    body: bytes
    headers: tuple[bytes, ...] = (b"Content-Type: application/json",)
    path: bytes = b"/v1/chat/completions"
    has: bytes = b""  # required bytes at the backend
    hides: bool = True  # whether the forbidden model may not reach the backend anywhere


def document(**fields: Any) -> bytes:
    return json.dumps({"model": "m1", **fields}).encode()


# Forms.

AUDIO = b"/v1/audio/transcriptions"
FORM = b"Content-Type: multipart/form-data; boundary=b"


def part(name: bytes, value: bytes, *headers: bytes) -> bytes:
    """A form part; `name` is the rest of its disposition."""
    lines = [b"Content-Disposition: form-data; " + name, *headers]
    return b"--b\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + value + b"\r\n"


MODEL, OTHER, END = part(b'name="model"', ALLOWED), part(b'name="model"', FORBIDDEN), b"--b--\r\n"
FILE = part(b'name="file"; filename="a.wav"', b"RIFF", b"Content-Type: audio/wav")


def form(*pieces: bytes, content_type: bytes = FORM, status: int = REFUSED) -> Attack:
    return Attack(status, b"".join(pieces), (content_type,), AUDIO)


def in_form(name: bytes, *headers: bytes, value: bytes = FORBIDDEN, status: int = REFUSED) -> Attack:
    """A form with another part after the model."""
    return form(MODEL, part(name, value, *headers), END, status=status)


def instead(name: bytes, *headers: bytes, value: bytes = ALLOWED) -> Attack:
    """A form whose only model is written differently."""
    return form(part(name, value, *headers), FILE, END)


FORMS = {
    "a model in its place": Attack(CLEANED, MODEL + FILE + END, (FORM,), AUDIO, has=MODEL + FILE + END),
    "the other model": form(OTHER, FILE, END, status=DENIED),
    "no model": form(FILE, END, status=DENIED),
    "two models": form(MODEL, OTHER, END),
    "another media type with a form's as a parameter": form(
        b"model=secret-model&a=",
        MODEL,
        END,
        content_type=b"Content-Type: application/x-www-form-urlencoded; a=multipart/form-data; boundary=b",
    ),
    "a longer media type": form(
        MODEL, END, content_type=b"Content-Type: multipart/form-data-model=secret-model; boundary=b"
    ),
    "two boundaries": form(
        b"--c\r\n" + MODEL, END, content_type=b"Content-Type: multipart/form-data; boundary=b; boundary=c"
    ),
    "an encoded boundary": form(MODEL, END, content_type=FORM + b"; boundary*=utf-8''c"),
    "an encoded boundary first": form(
        MODEL, END, content_type=b"Content-Type: multipart/form-data; boundary*=utf-8''c; boundary=b"
    ),
    "a continued boundary": form(MODEL, END, content_type=FORM + b"; boundary*0=c"),
    "an escaped boundary": form(MODEL, END, content_type=b'Content-Type: multipart/form-data; boundary="\\b"'),
    "a boundary with a space at its end": form(
        MODEL, END, content_type=b'Content-Type: multipart/form-data; boundary="b "'
    ),
    "a boundary in a comment": form(
        MODEL, END, content_type=b"Content-Type: multipart/form-data (boundary=c); boundary=b"
    ),
    "two values in one header": form(MODEL, END, content_type=FORM + b", application/json"),
    "a charset": form(MODEL, END, content_type=FORM + b"; charset=utf-16"),
    "two headers Content-Type": Attack(REFUSED, MODEL + END, (FORM, b"Content-Type: text/plain"), AUDIO),
    "a form behind the end": form(MODEL, END, OTHER, END),
    "a form behind the end, after lines": form(MODEL, END, b"\r\n\r\n", OTHER, END),
    "a form before the first boundary": form(OTHER.replace(b"--b", b"--c") + b"\r\n", MODEL, END),
    "a line before the first boundary": form(b"\r\n", MODEL, END),
    "a name with a space at its end": in_form(b'name="model "'),
    "a name with a space at its start": in_form(b'name=" model"'),
    "a name with a tab": in_form(b'name="model\t"'),
    "a name with NUL": in_form(b'name="model\0"'),
    "a name in other letters": in_form(b'name="Model"'),
    "a name of a list": in_form(b'name="model[]"'),
    "a name of an object": in_form(b'name="[model]"'),
    "an encoded name": in_form(b"name*=utf-8''model"),
    "an encoded name beside another": in_form(b"name=x; name*=utf-8''model"),
    "a continued name": in_form(b'name*0="mod"; name*1="el"'),
    "an escaped name": in_form(b'name="mod\\el"'),
    "two names": in_form(b'name="x"; name="model"'),
    "a name in a file name": in_form(b'name="x"; filename="a\\"; name=\\"model"'),
    "a disposition that is not of a form": instead(b'name="x"', b'Content-Disposition: attachment; name="model"'),
    "a name that is no token": in_form(b"name=(model)"),
    "a parameter before the name": in_form(b'x="; name=model"; name="x"'),
    "a folded header": in_form(b'name="x";\r\n name="model"'),
    "a space before the colon": form(
        MODEL, b'--b\r\nContent-Disposition : form-data; name="model"\r\n\r\nsecret-model\r\n', END
    ),
    "a header that ends with a line feed": in_form(b'name="x"\nContent-Disposition: form-data; name="model"'),
    "delimiters that end with line feeds": in_form(
        b'name="x"', value=b'\n--b\nContent-Disposition: form-data; name="model"\n\nsecret-model\n'
    ),
    "a delimiter within a line": in_form(b'name="x"', value=b"x" + OTHER),
    "a delimiter with spaces": form(MODEL, OTHER.replace(b"--b", b"--b  "), END),
    "an end within a value": in_form(b'name="x"', value=b"x--b--\r\n"),
    "a value that begins with a delimiter": in_form(b'name="x"', value=OTHER),
    "a delimiter within a header": in_form(b'name="x"', b"X--b: 1"),
    "an empty header": in_form(b'name="x"', b"X-A:"),
    "a longer boundary": in_form(b'name="x"', value=b"\r\n" + OTHER.replace(b"--b", b"--bb")),
    "a model in base64": instead(
        b'name="model"', b"Content-Transfer-Encoding: base64", value=base64.b64encode(FORBIDDEN)
    ),
    "a model in quoted-printable": instead(
        b'name="model"', b"Content-Transfer-Encoding: quoted-printable", value=b"m=31"
    ),
    "a model in UTF-16": instead(b'name="model"', b"Content-Type: text/plain; charset=utf-16"),
    "a model in UTF-7": instead(b'name="model"', b"Content-Type: text/plain; charset=utf-7", value=b"m+ADE-"),
    "a charset for all fields": form(part(b'name="_charset_"', b"utf-7"), MODEL, END),
    "a model in a file": instead(b'name="model"; filename="a"'),
    "a model in a file with an encoded name": instead(b"name=\"model\"; filename*=utf-8''a"),
    "a model in JSON": instead(b'name="model"', b"Content-Type: application/json", value=b'"m1"'),
    "a form within the form": in_form(
        b'name="x"',
        b"Content-Type: multipart/mixed; boundary=c",
        value=b'--c\r\nContent-Disposition: form-data; name="model"\r\n\r\nsecret-model\r\n--c--\r\n',
    ),
    "a part that is shorter than it says": form(
        part(b'name="model"', ALLOWED, b"Content-Length: 60"), part(b'name="x"', FORBIDDEN), END
    ),
    "a part that is longer than it says": form(part(b'name="model"', b"m1secret-model", b"Content-Length: 2"), END),
    "a header twice": in_form(b'name="x"', b"Content-Type: text/plain", b"Content-Type: multipart/mixed; boundary=c"),
    "a model with a line": instead(b'name="model"', value=b"m1\r\n"),
    "a model with NUL": instead(b'name="model"', value=b"m1\0secret-model"),
    "a model that is not UTF-8": instead(b'name="model"', value=b"m1\xff"),
    "a list of further models": in_form(b'name="fallbacks"', status=DENIED),
    "a form without an end": form(MODEL, FILE),
}

# JSON.

JSON = {
    "a model in its place": Attack(CLEANED, document(), has=document()),
    "the other model": Attack(DENIED, b'{"model": "secret-model"}'),
    "no model": Attack(REFUSED, b"{}"),
    "two models": Attack(REFUSED, b'{"model": "m1", "model": "secret-model"}'),
    "two models, the first forbidden": Attack(REFUSED, b'{"model": "secret-model", "model": "m1"}'),
    "two models, one escaped": Attack(REFUSED, b'{"model": "m1", "mod\\u0065l": "secret-model"}'),
    "a name in other letters": Attack(REFUSED, document(Model="secret-model")),
    "a name with a space": Attack(REFUSED, document(**{"model ": "secret-model"})),
    "a name with NUL": Attack(REFUSED, b'{"model": "m1", "model\\u0000": "secret-model"}'),
    "a name with a byte order mark": Attack(REFUSED, b'{"model": "m1", "\\ufeffmodel": "secret-model"}'),
    "a name of a list": Attack(REFUSED, document(**{"model[]": ["secret-model"]})),
    "a model that is a list": Attack(REFUSED, b'{"model": ["m1", "secret-model"]}'),
    "a model that is an object": Attack(REFUSED, b'{"model": {"m1": 1, "id": "secret-model"}}'),
    "two documents": Attack(REFUSED, b'{"model": "m1"}{"model": "secret-model"}'),
    "two lines of documents": Attack(REFUSED, b'{"model": "m1"}\n{"model": "secret-model"}'),
    "a comment": Attack(REFUSED, b'{"model": "m1" /*, "model": "secret-model" */}'),
    "a comma at the end": Attack(REFUSED, b'{"model": "m1",}'),
    "single quotes": Attack(REFUSED, b"{'model': 'secret-model', \"model\": \"m1\"}"),
    "a byte order mark": Attack(CLEANED, b"\xef\xbb\xbf" + document(), has=document()),
    "two byte order marks": Attack(REFUSED, b"\xef\xbb\xbf\xef\xbb\xbf" + document()),
    "UTF-16": Attack(REFUSED, document().decode().encode("utf-16")),
    "bytes that are not UTF-8": Attack(REFUSED, b'{"model": "m1", "x": "\xff"}'),
    "overlong UTF-8": Attack(REFUSED, b'{"model": "m1", "mod\xc1\xa5l": "secret-model"}'),
    "NUL behind the document": Attack(REFUSED, document() + b'\0{"model": "secret-model"}'),
    "a number without bounds": Attack(REFUSED, b'{"model": "m1", "max_tokens": 1e999}'),
    "the type of a query": Attack(
        CLEANED,
        document(x="&model=secret-model&y="),
        (b"Content-Type: application/x-www-form-urlencoded",),
        has=b"application/json",
        hides=False,
    ),
    "no type": Attack(CLEANED, document(), (), has=b"application/json"),
    "another charset": Attack(
        CLEANED, document(), (b"Content-Type: application/json; charset=utf-7",), has=b"application/json"
    ),
    "two types": Attack(
        CLEANED, document(), (b"Content-Type: application/json", b"Content-Type: text/secret-model"), has=document()
    ),
    "a type that is no end-to-end header": Attack(
        CLEANED,
        document(),
        (b"Content-Type: application/json", b"Connection: content-type, x-secret-model"),
        has=b"application/json",
    ),
    "gzip of two members": Attack(
        REFUSED,
        gzip.compress(b'{"model": "m1"}') + gzip.compress(b'{"model": "secret-model"}'),
        (b"Content-Encoding: gzip",),
    ),
    "an encoding twice": Attack(415, document(), (b"Content-Encoding: identity", b"Content-Encoding: gzip")),
    "OpenRouter's list of models": Attack(DENIED, document(models=["m1", "secret-model"])),
    "LiteLLM's fallbacks": Attack(DENIED, document(fallbacks=["secret-model"])),
    "LiteLLM's fallbacks as objects": Attack(DENIED, document(fallbacks=[{"model": "secret-model"}])),
    "LiteLLM's fields again": Attack(DENIED, document(extra_body={"model": "secret-model"})),
    "LiteLLM's fields again and again": Attack(DENIED, document(extra_body={"extra_body": {"model": "secret-model"}})),
    "a model of drafts": Attack(DENIED, document(draft_model="secret-model")),
    "further models that are allowed": Attack(CLEANED, document(models=["m1"]), has=b'"models": ["m1"]'),
    "a model with a space": Attack(REFUSED, b'{"model": "m1 "}'),
    "a model with a line": Attack(REFUSED, b'{"model": "m1\\nsecret-model"}'),
    "a model with NUL": Attack(REFUSED, b'{"model": "m1\\u0000secret-model"}'),
    "half a character": Attack(DENIED, b'{"model": "m1\\ud800"}'),
    "a model of a megabyte": Attack(REFUSED, document(model="m" * 1_000_000)),
    "a response with another model": Attack(DENIED, document(model="secret-model", input="Hi."), path=b"/v1/responses"),
    "a response with two models": Attack(
        DENIED, b'{"model": "m1", "input": "Hi.", "model": "secret-model"}', path=b"/v1/responses"
    ),
    "a response with further models": Attack(
        DENIED, document(input="Hi.", models=["secret-model"]), path=b"/v1/responses"
    ),
    "a response with fields again": Attack(
        DENIED, document(input="Hi.", extra_body={"model": "secret-model"}), path=b"/v1/responses"
    ),
}

# The same at Anthropic's endpoints, and fields that only exist there.

_ADVISOR = {"type": "advisor_20260301", "name": "advisor", "model": "secret-model"}
MESSAGES = {
    **{
        f"{name}, at {path.decode()}": attack._replace(path=path)
        for path in (b"/v1/messages", b"/v1/messages/count_tokens")
        for name, attack in JSON.items()
        if attack.path == b"/v1/chat/completions"
    },
    "an advisor": Attack(DENIED, document(tools=[_ADVISOR]), path=b"/v1/messages"),
    "an advisor in other letters": Attack(DENIED, document(tools=[{"Model": "secret-model"}]), path=b"/v1/messages"),
    "the second of two tools": Attack(DENIED, document(tools=[{"name": "look"}, _ADVISOR]), path=b"/v1/messages"),
    "the model of a fallback in a tool": Attack(
        DENIED, document(tools=[{"fallback": ["secret-model"]}]), path=b"/v1/messages"
    ),
    "a form as a message": Attack(REFUSED, MODEL + OTHER + END, (FORM,), b"/v1/messages"),
    "a query with a beta": Attack(CLEANED, document(), path=b"/v1/messages?beta=true&model=secret-model"),
    "batches": Attack(404, document(requests=[{"params": {"model": "secret-model"}}]), path=b"/v1/messages/batches"),
    "a path below": Attack(404, document(), path=b"/v1/messages/../models/secret-model"),
}

# Outside the body.


def beside(path: bytes = b"/v1/chat/completions", *headers: bytes, body: bytes = b"", status: int = CLEANED) -> Attack:
    return Attack(status, body or document(), (b"Content-Type: application/json", *headers), path, body or document())


_FORBIDDEN_HEADERS = [
    *(b"X-HTTP-Method-Override", b"X-HTTP-Method", b"X-Method-Override", b"X-Original-URL", b"X-Original-URI"),
    *(b"X-Rewrite-URL", b"X-Original-Host", b"X-Host", b"X-Forwarded-Host", b"X-Forwarded-Prefix", b"X-Forwarded-Uri"),
    *(b"X_Rewrite_Url", b"X-Envoy-Original-Path", b"X-Gateway-Model-Name", b"X-AI-EG-Model", b"mm-model-id"),
    *(b"azureml-model-deployment", b"X-Model", b"X-LiteLLM-Tags", b"X-LiteLLM-Api-Key", b"X-Portkey-Config"),
    *(b"Helicone-Target-Url", b"cf-aig-authorization", b"X-Goog-Api-Key", b"True-Client-IP", b"Forwarded", b"Api_Key"),
    *(b"Content_Type", b"Transfer_Encoding", b"Cookie", b"Referer", b"TE", b"Proxy-Authorization"),
]
BESIDE = {
    "a query": beside(b"/v1/chat/completions?model=secret-model"),
    "a query with more": beside(b"/v1/chat/completions?a=1&model=secret-model&b=2"),
    "a query in other letters": beside(b"/v1/chat/completions?Model=secret-model"),
    "an escaped query": beside(b"/v1/chat/completions?mod%65l=secret-model"),
    "a query of a list": beside(b"/v1/chat/completions?model%5B%5D=secret-model"),
    "a query with semicolons": beside(b"/v1/chat/completions?a=1;model=secret-model"),
    "a query with NUL": beside(b"/v1/chat/completions?a=%00", status=REFUSED),
    **{
        f"the header {name.decode()}": beside(b"/v1/embeddings", name + b": secret-model")
        for name in _FORBIDDEN_HEADERS
    },
    "a deployment": Attack(
        CLEANED, b'{"model": "secret-model"}', path=b"/openai/deployments/m1/chat/completions", has=b'{"model": "m1"}'
    ),
    "a deployment with a query": Attack(
        CLEANED, document(), path=b"/openai/deployments/m1/chat/completions?model=secret-model", has=document()
    ),
    "the other deployment": beside(b"/openai/deployments/secret-model/embeddings", status=DENIED),
    "a deployment with dots": beside(b"/openai/deployments/m1/../secret-model/embeddings", status=DENIED),
    "a deployment with escaped dots": beside(b"/openai/deployments/m1%2f..%2fsecret-model/embeddings", status=DENIED),
    "a deployment with a line": beside(b"/openai/deployments/m1%0a/embeddings", status=404),
    "a deployment with NUL": beside(b"/openai/deployments/m1%00/embeddings", status=404),
    "a path that leaves its place": beside(b"/v1/audio/../models/secret-model", status=404),
    "an escaped path that leaves its place": beside(b"/v1/audio/%2e%2e/models/secret-model", status=404),
    "a path with a parameter": beside(b"/v1/audio/speech;model=secret-model", status=404),
}

# Bodies with an ambiguous length, by the rest of the head. All are refused.

_SHORT, _LONG = document(), b'{"model": "secret-model"}'
_CHUNK = b"%x\r\n%b\r\n" % (len(_SHORT), _SHORT)
FRAMING = {
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNK + b"0\r\n\r\n",
    "two lengths": b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b" % (len(_SHORT), len(_LONG), _LONG),
    "two lengths in one header": b"Content-Length: %d, %d\r\n\r\n%b" % (len(_SHORT), len(_LONG), _LONG),
    "a length with a sign": b"Content-Length: +%d\r\n\r\n%b" % (len(_SHORT), _SHORT),
    "a length in hexadecimal digits": b"Content-Length: 0x%x\r\n\r\n%b" % (len(_SHORT), _SHORT),
    "a length below zero": b"Content-Length: -1\r\n\r\n",
    "a space before the colon": b"Content-Length : %d\r\n\r\n%b" % (len(_SHORT), _SHORT),
    "a folded header": b"X-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%b" % (len(_SHORT), _SHORT),
    "a carriage return alone": b"X-A: b\rX-B: c\r\nContent-Length: %d\r\n\r\n%b" % (len(_SHORT), _SHORT),
    "another encoding": b"Transfer-Encoding: xchunked\r\n\r\n" + _CHUNK + b"0\r\n\r\n",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + _CHUNK + b"0\r\n\r\n",
    "a size in another form": b"Transfer-Encoding: chunked\r\n\r\n0x" + _CHUNK + b"0\r\n\r\n",
    "a size of more than 64 bits": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + _SHORT,
    "lines that end with line feeds": (b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNK + b"0\r\n\r\n").replace(
        b"\r\n%b\r\n" % _SHORT, b"\n%b\n" % _SHORT
    ),
}

# `Host` values for a keyless server that allows `chat.example` and `*.lab.example`, and whether they are served.

HOSTS = {
    "127.0.0.1:8080": True,
    "192.168.1.7": True,
    "[::1]:8080": True,
    "[fe80::1%25eth0]": True,
    "localhost": True,
    "LOCALHOST:8080": True,
    "localhost.": True,
    "studio.localhost:8080": True,
    "chat.example": True,
    "Chat.Example:8080": True,
    "chat.example.:8080": True,
    "a.lab.example": True,
    "a.b.lab.example:1": True,
    "": True,  # no browser sends it
    "evil.example": False,
    "evil.example:8080": False,
    "evil.example.": False,
    "localhost.evil.example": False,
    "127.0.0.1.evil.example": False,
    "127.0.0.1.": True,  # browsers send the address
    "chat.example.evil.example": False,
    "evilchat.example": False,
    "www.chat.example": False,
    "lab.example": False,
    "evillab.example": False,
    "evil.example:127.0.0.1": False,
    "evil.example%00.localhost": False,
    "localhost%2eevil.example": False,
    "notlocalhost": False,
    "antiphon": False,
    "2130706433": False,  # browsers send 127.0.0.1
    "0x7f000001": False,
    "127.1": False,
    "[evil.example]": False,
    "[localhost]": False,
    "*": False,
    "*.lab.example.evil.example": False,
    "xn--lclhost-5fg": False,
}
