"""Passthrough at the byte level, with input beyond client libraries."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from starlette.types import Message, Receive, Scope, Send

from app.api.uvicorn.http import HTTPProtocol
from app.main import create_app
from tests.support.raw_server import PATIENCE, Peer, serve, sized
from tests.support.serving import antiphon, serving, settings
from tests.support.upstream import CLOSE, Step, Upstream, completion, reply

BODY = b'{"model":"m"}'
MODEL_PART = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n'
FILE_PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a; name=b"\r\n\r\n'
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
KEY = "sk-backend-secret-0123456789"


@pytest_asyncio.fixture
async def url(up: Upstream) -> AsyncIterator[str]:
    """The server with its own reading of HTTP, as `antiphon serve` has it."""
    app = create_app(settings(backend_url=up.url, backend_api_key=KEY, backend_retries=0, max_body_bytes="2MiB"))
    async with serving(app, http=HTTPProtocol) as url:
        yield url


async def ask(url: str, *lines: bytes, body: bytes = BODY, method: bytes = b"POST") -> bytes:
    """Send a request as it is, and return all bytes of the answer."""
    reader, writer = await connect(url)
    head = [method + b" /v1/embeddings HTTP/1.1", b"Host: localhost", b"Connection: close", *lines]
    if not any(line.startswith(b"Transfer-Encoding") for line in lines):
        head.append(b"Content-Length: %d" % len(body))
    writer.write(b"\r\n".join([*head, b"", body]))
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return answer


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)


def fields(answer: bytes) -> dict[bytes, bytes]:
    """An answer's headers."""
    lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}


# Answers.


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b""),
        ([b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-1/4\r\nContent-Length: 2\r\n\r\nab"], 206, b"ab"),
        ([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"], 200, b"{}"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], 200, b""),
        ([b"HTTP/1.1 200 OK\r\n\r\nabc", CLOSE], 200, b"3\r\nabc\r\n0\r\n\r\n"),
        ([b"HTTP/1.0 200 OK\r\n\r\nabc", CLOSE], 200, b"3\r\nabc\r\n0\r\n\r\n"),
        (
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Trailer: a\r\n\r\n"],
            200,
            b"2\r\n{}\r\n0\r\n\r\n",
        ),
        (
            [b"HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 3\r\n\r\nabc"],
            200,
            b"3\r\nabc\r\n0\r\n\r\n",
        ),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabcdef"], 200, b"ab"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", CLOSE], 200, b"abc"),  # cut off here too
    ],
    ids=["no content", "range", "interim", "empty", "closed", "1.0", "trailers", "hop", "too long", "too short"],
)
async def test_answer_keeps_its_status_and_bytes(
    up: Upstream, url: str, answer: list[Step], status: int, body: bytes
) -> None:
    up.say(*answer)
    head, _, received = (await ask(url)).partition(b"\r\n\r\n")
    assert (int(head.split()[1]), received) == (status, body)
    assert b"x-trailer" not in head.lower() and b"link" not in head.lower()


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        (b"Content-Length: 3\r\n\r\nabc", [(b"abc", False)]),
        (b"Content-Length: 0\r\n\r\n", [(b"", False)]),
        (b"\r\nabc", [(b"abc", True), (b"", False)]),
    ],
    ids=["whole", "empty", "of unknown length"],
)
async def test_answer_ends_with_its_last_bytes_where_their_number_is_known(
    up: Upstream, answer: bytes, written: list[tuple[bytes, bool]]
) -> None:
    app = create_app(settings(backend_url=up.url, backend_retries=0))
    seen: list[tuple[bytes, bool]] = []

    async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
        async def record(message: Message) -> None:
            if message["type"] == "http.response.body":
                seen.append((message["body"], message.get("more_body", False)))
            await send(message)

        await app(scope, receive, record)

    up.say(b"HTTP/1.1 200 OK\r\n" + answer, CLOSE)
    async with serving(recorded) as url:  # type: ignore[arg-type]
        await ask(url)
    assert seen == written


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX-Vendor: a\x01b\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello",
        b"not HTTP\r\n\r\n",
    ],
    ids=["two framings", "two lengths", "control character", "upgrade", "not HTTP"],
)
async def test_answer_with_ambiguous_framing_is_a_502(up: Upstream, url: str, head: bytes) -> None:
    up.say(head)
    answer = await ask(url)
    assert answer.startswith(b"HTTP/1.1 502 ") and b'"code":"server_error"' in answer


async def test_headers_of_the_backends_account_are_not_passed_on(up: Upstream, url: str) -> None:
    theirs = {
        "Access-Control-Allow-Origin": "https://evil.example",
        "Anthropic-Organization-Id": "operator",
        "Clear-Site-Data": "*",
        "Location": "http://10.0.0.1/",
        "Set-Cookie": "a=b",
        "X-Antiphon-Warning": "forged",
        "X-RateLimit-Remaining-Requests": "7",
    }
    up.say(reply(b"{}", headers={**theirs, "OpenAI-Model": "one"}))
    answer = fields(await ask(url))
    assert answer[b"openai-model"] == b"one"
    assert not {name.lower().encode() for name in theirs} & set(answer)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_is_not_followed(up: Upstream, url: str, status: int) -> None:
    async with Upstream() as other:
        up.say(reply(b"", status=status, headers={"Location": f"{other.url}/embeddings"}))
        answer = await ask(url)
        assert answer.startswith(b"HTTP/1.1 404 ") and b"location" not in fields(answer)
        assert not other.connections


async def test_refusal_that_is_compressed_is_passed_on_decoded(up: Upstream, url: str) -> None:
    refusal = b'{"error": {"message": "Bad size", "type": "invalid_request_error"}}'
    up.say(reply(gzip.compress(refusal), status=400, headers={"Content-Encoding": "gzip"}))
    head, _, body = (await ask(url)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and body == refusal and b"content-encoding" not in head


# Requests.


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET", "PUT", "DELETE"])
async def test_method_other_than_post_is_refused(up: Upstream, url: str, method: str) -> None:
    answer = await ask(url, method=method.encode(), body=b"")
    assert answer.startswith(b"HTTP/1.1 405 ") and fields(answer)[b"allow"] == b"POST"
    assert not up.requests


async def test_origin_of_a_page_of_this_machine_is_allowed_and_not_passed_on(up: Upstream, url: str) -> None:
    page = b"Origin: http://localhost:3000"
    requested_method = b"Access-Control-Request-Method: POST"
    preflight = await ask(url, page, requested_method, method=b"OPTIONS", body=b"")
    assert preflight.startswith(b"HTTP/1.1 200 ")
    up.say(completion())
    answer = await ask(url, page, b"Referer: http://localhost:3000/chat", b"X-Forwarded-For: 10.1.2.3")
    assert fields(answer)[b"access-control-allow-origin"] == b"http://localhost:3000"
    assert not {"origin", "referer", "x-forwarded-for"} & set(up.requests[0].headers)
    assert (await ask(url, b"Origin: https://evil.example")).startswith(b"HTTP/1.1 403 ")
    assert len(up.requests) == 1


async def test_client_expecting_100_continue_gets_it(up: Upstream, url: str) -> None:
    up.say(completion())
    reader, writer = await connect(url)
    writer.write(
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(BODY)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert up.requests[0].body == BODY and "expect" not in up.requests[0].headers
    writer.close()


async def test_body_in_chunks_or_compressed_is_sent_whole(up: Upstream, url: str) -> None:
    up.always(completion())
    chunked = b"4\r\n%b\r\n9\r\n%b\r\n0\r\nX-Trailer: a\r\n\r\n" % (BODY[:4], BODY[4:])
    assert (await ask(url, b"Transfer-Encoding: chunked", body=chunked)).startswith(b"HTTP/1.1 200 ")
    assert (await ask(url, b"Content-Encoding: gzip", body=gzip.compress(BODY))).startswith(b"HTTP/1.1 200 ")
    for request in up.requests:
        assert (request.body, request.headers["content-length"]) == (BODY, "13")
        assert not {"transfer-encoding", "content-encoding", "x-trailer"} & set(request.headers)


async def test_body_with_two_framings_is_refused(up: Upstream, url: str) -> None:
    answer = await ask(url, b"Transfer-Encoding: chunked", b"Content-Length: 13", body=b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert not up.requests


@pytest.mark.parametrize("name", ["Authorization", "api-key", "x-api-key", "Cookie", "Proxy-Authorization"])
async def test_callers_key_is_not_passed_on(up: Upstream, name: str) -> None:
    up.say(completion())
    async with antiphon(backend_url=up.url, backend_api_key=KEY) as url, httpx.AsyncClient() as client:
        value = f"Bearer sk-caller-{name}"
        response = await client.post(f"{url}/v1/embeddings", json={"model": "m"}, headers={name: value})
    assert response.status_code == 200
    assert "sk-caller" not in str(up.requests[0].headers)
    assert up.requests[0].headers["authorization"] == f"Bearer {KEY}"


# Forms.


@pytest.mark.parametrize(
    "disposition",
    [
        b"form-data; name*=utf-8''model",
        b'form-data; name="x"; name="model"',
        b'form-data; name="model"; name="x"',
        b'form-data; name="model"\r\nContent-Disposition: form-data; name="x"',
        b'form-data; name="mod\\el"',
        b"form-data",
        b'form-data; name="model"',
        b'form-data; Name=model; filename="a"',
    ],
)
async def test_form_has_one_model_for_every_parser(up: Upstream, disposition: bytes) -> None:
    keys = {"team": {"hash": f"sha256:{hashlib.sha256(b'sk-team').hexdigest()}", "models": ["small"]}}
    part = b"--b\r\nContent-Disposition: %b\r\n\r\nlarge\r\n" % disposition
    headers = {"Authorization": "Bearer sk-team", **FORM}
    async with antiphon(backend_url=up.url, keys=keys) as url, httpx.AsyncClient() as client:
        for form in (MODEL_PART + part, part + MODEL_PART):
            response = await client.post(f"{url}/v1/audio/speech", content=form + b"--b--\r\n", headers=headers)
            assert response.status_code in (400, 403)
    assert not up.requests


async def test_form_with_two_boundaries_is_refused(up: Upstream, url: str) -> None:
    kinds = (b"Content-Type: multipart/form-data; boundary=b", b"Content-Type: Multipart/Form-Data; boundary=c")
    form = MODEL_PART + b"--b--\r\n"
    for lines in (kinds, kinds[::-1], (b"Content-Type: application/json", kinds[0])):
        assert (await ask(url, *lines, body=form)).startswith(b"HTTP/1.1 400 ")
    assert not up.requests
    up.say(completion())
    assert (await ask(url, kinds[1].replace(b"=c", b"=b"), body=form)).startswith(b"HTTP/1.1 200 ")
    assert up.requests[0].body == form


async def test_form_of_unknown_length_beyond_the_limit_is_refused() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.hung_up()
        gone.set()

    async def form() -> AsyncIterator[bytes]:
        yield MODEL_PART + FILE_PART
        for _ in range(20):
            yield b"\x01" * 100_000

    async with (
        serve(script) as server,
        antiphon(backend_url=f"{server.url}v1", max_body_bytes="1MiB") as url,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        response = await client.post(f"{url}/v1/audio/speech", content=form(), headers=FORM)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        await asyncio.wait_for(gone.wait(), PATIENCE)


async def test_client_that_disconnects_within_a_form_ends_the_request() -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"halfway")
        arrived.set()
        await peer.hung_up()
        gone.set()

    async with serve(script) as server, antiphon(backend_url=f"{server.url}v1") as url:
        _, writer = await connect(url)
        writer.write(b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n")
        writer.write(b"Content-Type: multipart/form-data; boundary=b\r\n\r\n" + MODEL_PART + FILE_PART + b"halfway")
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        writer.close()
        await asyncio.wait_for(gone.wait(), PATIENCE)


async def test_backend_that_reads_slowly_slows_the_client() -> None:
    read = asyncio.Event()
    pieces = [b"\x01" * 100_000] * 400
    sent = received = 0

    async def script(peer: Peer) -> None:
        nonlocal received
        await read.wait()
        while data := await peer.reader.read(1_000_000):
            received += data.count(b"\x01")
            if received == 40_000_000:
                await peer.send(sized(b"{}"))

    async def upload(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            sent += 1
        writer.write(b"\r\n--b--\r\n")

    async with serve(script) as server, antiphon(backend_url=f"{server.url}v1", max_body_bytes="64MiB") as url:
        reader, writer = await connect(url)
        form = MODEL_PART + FILE_PART
        length = len(form) + 40_000_000 + len(b"\r\n--b--\r\n")
        writer.write(b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % length)
        writer.write(b"Content-Type: multipart/form-data; boundary=b\r\n\r\n" + form)
        uploading = asyncio.ensure_future(upload(writer))
        before = -1
        while before != sent:  # until the client is held up
            before = sent
            await asyncio.sleep(0.5)
        assert before < len(pieces)
        read.set()
        await uploading
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
