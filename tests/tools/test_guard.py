"""No name from a caller or a model makes the server send requests to a private address."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from typing import Any

import httpcore
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.tools.guard import (
    AddressPolicy,
    BoundedBody,
    GuardedNetwork,
    GuardedTransport,
    OutboundRefused,
    URLPattern,
    checked_url,
    fetch,
    is_allowed,
)
from tests.support.upstream import HANG, Upstream, head, reply

PUBLIC = "93.184.216.34"


class Network(httpcore.AsyncMockBackend):
    """The network, as `httpcore` itself plays it for tests; notes where connections go."""

    def __init__(self, *responses: bytes) -> None:
        super().__init__([])
        self.responses = list(responses)
        self.connected: list[str] = []
        self.unreachable: set[str] = set()

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        self.connected.append(host)
        if host in self.unreachable:
            raise httpcore.ConnectError("refused")
        return httpcore.AsyncMockStream([self.responses.pop(0)])


def http(body: bytes = b"ok", status: str = "200 OK", **headers: str) -> bytes:
    fields = {"Content-Length": str(len(body)), "Connection": "close", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


class Names:
    """A resolver with different answers over time."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {name.replace("_", "."): [*answer] for name, answer in answers.items()}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        answers = self.answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(httpcore, "AnyIOBackend", lambda: network)
    return network


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.0.3",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "0.0.0.0",
        "0.1.2.3",
        "192.0.0.1",
        "192.0.0.8",
        "192.0.0.9",
        "192.0.0.170",
        "192.0.0.255",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::10.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "64:ff9b:1::808:808",
        "64:ff9b:1:808:8:800::",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "2001:db8::1",
        "3fff::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "4000::1",
    ],
)
def test_addresses_of_private_networks_are_not_public(address: str) -> None:
    assert not is_allowed(ip_address(address), "public")


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_allowed(ip_address(address), "public")


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("192.168.1.1", True),
        ("::1", True),
        ("fc00::1", True),
        ("::ffff:10.0.0.1", True),
        (PUBLIC, True),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("fd00:ec2::254", False),
        ("168.63.129.16", False),
        ("64:ff9b:1::a00:1", True),
        ("64:ff9b:1:fffe::a00:1", True),
        ("64:ff9b:1::a9fe:a9fe", False),
        ("64:ff9b:1:a9fe:a9:fe00::", False),
        ("64:ff9b:1:a9:fe:a9fe::", False),
        ("64:ff9b:1:0:a9:fea9:fe00:0", False),
        ("64:ff9b:1::a83f:8110", False),
        ("fe80::1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
    ],
)
def test_allowed_network_has_no_metadata_services(address: str, allowed: bool) -> None:
    assert is_allowed(ip_address(address), "private") is allowed


@given(st.ip_addresses())
def test_addresses_that_are_not_global_are_never_public(address: Any) -> None:
    if is_allowed(address, "public"):
        carried = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
        assert carried.is_global and not carried.is_multicast
        assert is_allowed(address, "private")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "//example.com/",
        "example.com",
        "",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:password@example.com/",
        "https://example.com@127.0.0.1/",
        "https://@example.com/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://017700000001/",
        "https://127.1/",
        "https://127.0.0.1./",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[fe80::1%25eth0]/",
        "https://0/",
        "https://1.2.3/",
        "https://10.0.0.1.5/",
        "https://①②⑦.⓪.⓪.①/",
        "https://127。0。0。1/",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com\r\nHost: other/",
        "https://example.com:8443/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://.example.com/",
        "https://example..com/",
        "https://%31%32%37.0.0.1/",
        "https://example.com/" + "a" * 9000,
    ],
)
def test_urls_that_are_unsafe_are_refused_before_any_request(url: str) -> None:
    with pytest.raises(OutboundRefused):
        checked_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:443/a?b=c#d",
        "HTTPS://EXAMPLE.com/",
        "https://bücher.example/",
        f"https://{PUBLIC}/",
        "https://[2606:4700::1111]/",
        "https://1password.com/",
        "https://a.b-c.d/",
    ],
)
def test_urls_that_are_safe_are_accepted(url: str) -> None:
    assert checked_url(url).scheme == "https"


@pytest.mark.parametrize(
    ("pattern", "url", "matches"),
    [
        ("https://*.example.com/*", "https://mcp.example.com/mcp", True),
        ("https://*.example.com/*", "https://a.b.example.com/", True),
        ("https://*.example.com/*", "https://MCP.Example.com/mcp?key=value", True),
        ("https://*.example.com/*", "https://example.com/mcp", False),
        ("https://*.example.com/*", "https://evil.com/x.example.com/", False),
        ("https://*.example.com/*", "https://evil.com?x.example.com/", False),
        ("https://*.example.com/*", "https://evil.com#x.example.com/", False),
        ("https://*.example.com/*", "https://badexample.com/", False),
        ("https://*.example.com/*", "https://mcp.example.com.evil.com/", False),
        ("https://*.example.com/*", "http://mcp.example.com/", False),
        ("https://*.example.com/*", "https://mcp.example.com:8443/", False),
        ("https://mcp.example.com:8443/*", "https://mcp.example.com:8443/x", True),
        ("https://mcp.example.com", "https://mcp.example.com/any/path", True),
        ("https://mcp.example.com/v1/*", "https://mcp.example.com/v1/mcp", True),
        ("https://mcp.example.com/v1/*", "https://mcp.example.com/v2/mcp", False),
        ("https://mcp.example.com/v1/*", "https://mcp.example.com/v1/../v2/mcp", False),
        ("https://mcp.example.com/v1/*", "https://mcp.example.com/v1/%2e%2e/v2/mcp", False),
        ("https://mcp.example.com/v1/*", "https://mcp.example.com/v1/..%2Fv2/mcp", False),
        ("https://*/*", "https://anything.example/mcp", True),
        ("http://mcp.internal/*", "http://mcp.internal/mcp", True),
        ("http://mcp.internal:9000", "http://mcp.internal:9000/mcp", True),
        ("http://localhost:*/*", "http://localhost:9000/mcp", True),
        ("http://localhost:*/*", "http://localhost/mcp", True),
        ("http://localhost:*/*", "https://localhost:9000/mcp", False),
        ("http://localhost:*/*", "http://localhost.evil.com:9000/mcp", False),
        ("https://*.example.com:*/v1/*", "https://mcp.example.com:8443/v1/mcp", True),
        ("https://*.example.com:*/v1/*", "https://mcp.example.com:8443/v2/mcp", False),
        ("https://[2606:4700::1111]:*", "https://[2606:4700::1111]:8443/mcp", True),
    ],
)
def test_url_pattern_matches_its_urls(pattern: str, url: str, matches: bool) -> None:
    allowed = [URLPattern.parse(pattern)]
    if matches:
        assert checked_url(url, allowed=allowed)
    else:
        with pytest.raises(OutboundRefused):
            checked_url(url, allowed=allowed)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*",
        "example.com",
        "ftp://example.com/*",
        "https://exa*mple.com/",
        "https:///x",
        "https://x:8*/",
        "https://x:**/",
    ],
)
def test_url_pattern_that_is_invalid_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="must be a URL"):
        URLPattern.parse(pattern)


_HOSTS = st.one_of(
    st.sampled_from(["127.0.0.1", "0x7f.1", "2130706433", "[::1]", "localhost", "example.com", "a@b", "①", "1.1.1.1"]),
    st.text(max_size=20),
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.integers(0, 2**33).map(str),
)


@given(st.sampled_from(["https://", "http://", "HTTPS://", "https:", "\thttps://", ""]), _HOSTS, st.text(max_size=8))
@example("https://", "127.0.0.1#", ".example.com")
async def test_connections_for_any_url_go_to_its_host_at_public_addresses(scheme: str, host: str, rest: str) -> None:
    try:
        checked = checked_url(f"{scheme}{host}{rest}")
    except OutboundRefused:
        return
    hosts: list[str] = []

    async def resolver(host: str, port: int) -> Sequence[str]:
        hosts.append(host)
        try:
            return [str(ip_address(host))]
        except ValueError:
            return [PUBLIC]

    network = Network(http())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore, "AnyIOBackend", lambda: network)
        guarded = GuardedNetwork("public", resolver=resolver)
    async with httpcore.AsyncConnectionPool(network_backend=guarded) as pool:
        await pool.request("GET", str(checked))
    assert hosts == [checked.raw_host.decode().strip("[]")]
    assert all(is_allowed(ip_address(address), "public") for address in network.connected)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["169.254.169.254"],
        ["::ffff:10.0.0.1"],
        ["64:ff9b::a00:1"],
        ["fe80::1%eth0"],
        [PUBLIC, "10.0.0.1"],
    ],
)
async def test_name_with_a_private_address_gets_no_connection(network: Network, addresses: list[str]) -> None:
    with pytest.raises(OutboundRefused):
        await fetch("https://inward.example/", resolver=Names(inward_example=[addresses]))
    assert network.connected == []


async def test_connection_goes_to_the_address_that_was_checked(network: Network) -> None:
    network.responses = [http(b"first"), http(b"second")]
    names = Names(example_com=[[PUBLIC], ["127.0.0.1"]])
    assert (await fetch("https://example.com/", resolver=names)).content == b"first"
    assert network.connected == [PUBLIC]  # and not the name, which would be resolved again
    with pytest.raises(OutboundRefused):
        await fetch("https://example.com/", resolver=names)
    assert network.connected == [PUBLIC]


async def test_address_that_does_not_answer_is_followed_by_the_next(network: Network) -> None:
    network.responses = [http()]
    network.unreachable = {PUBLIC}
    names = Names(example_com=[[PUBLIC, "2606:4700::1111"]])
    assert (await fetch("https://example.com/", resolver=names)).status_code == 200
    assert network.connected == [PUBLIC, "2606:4700::1111"]


async def test_redirects_that_are_safe_are_followed(network: Network) -> None:
    moved = http(status="301 Moved", Location="https://www.example.com/there")
    network.responses = [moved, http(b"here", Content_Type="text/html")]
    names = Names(example_com=[[PUBLIC]], www_example_com=[["8.8.8.8"]])
    page = await fetch("https://example.com/", resolver=names)
    assert (str(page.url), page.content) == ("https://www.example.com/there", b"here")
    assert page.headers["content-type"] == "text/html"
    assert network.connected == [PUBLIC, "8.8.8.8"]


@pytest.mark.parametrize(
    "location",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://inward.example/",
        "https://user@example.com/",
        "file:///etc/passwd",
        "https://example.com/",  # for ever
    ],
)
async def test_redirects_inward_are_not_followed(network: Network, location: str) -> None:
    network.responses = [http(status="302 Found", Location=location) for _ in range(10)]
    names = Names(example_com=[[PUBLIC]], inward_example=[["10.0.0.1"]])
    with pytest.raises(OutboundRefused):
        await fetch("https://example.com/", resolver=names)
    assert set(network.connected) == {PUBLIC}


async def test_redirects_stay_among_the_allowed_names(network: Network) -> None:
    network.responses = [http(status="302 Found", Location="https://other.example/")]
    allowed = [URLPattern.parse("https://example.com/*")]
    names = Names(example_com=[[PUBLIC]], other_example=[[PUBLIC]])
    with pytest.raises(OutboundRefused):
        await fetch("https://example.com/", allowed=allowed, resolver=names)


async def test_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(httpx.ConnectError):
        await fetch("https://nobody.invalid/")


async def test_proxy_of_the_environment_is_not_used(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, network: Network
) -> None:
    monkeypatch.setenv("https_proxy", upstream.url)
    monkeypatch.setenv("all_proxy", upstream.url)
    network.responses = [http()]
    await fetch("https://example.com/", resolver=Names(example_com=[[PUBLIC]]))
    assert upstream.connections == 0


async def client_for(policy: AddressPolicy, max_bytes: int = 1000) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=GuardedTransport(policy, max_bytes=max_bytes), trust_env=False)


async def test_socket_of_this_machine_is_refused(upstream: Upstream) -> None:
    upstream.always(reply(b"hello"))
    async with await client_for("any") as client:
        assert (await client.get(upstream.url)).content == b"hello"
    async with await client_for("private") as client:
        assert (await client.get(upstream.url)).content == b"hello"
    async with await client_for("public") as client:
        with pytest.raises(OutboundRefused):
            await client.get(upstream.url)
    assert upstream.connections == 2


@pytest.mark.parametrize(("pack", "encoding"), [(gzip.compress, "gzip"), (zlib.compress, "deflate")])
async def test_compressed_body_is_bounded_as_it_is_decompressed(upstream: Upstream, pack: Any, encoding: str) -> None:
    async with await client_for("any", max_bytes=1000) as client:
        upstream.say(reply(pack(b"a" * 900), headers={"Content-Encoding": encoding}))
        assert (await client.get(upstream.url)).content == b"a" * 900
        upstream.say(reply(pack(b"a" * 50_000_000), headers={"Content-Encoding": encoding}))
        with pytest.raises(OutboundRefused, match="larger than 1000 bytes"):
            await client.get(upstream.url)
        upstream.say(reply(b"no such thing", headers={"Content-Encoding": encoding}))
        with pytest.raises(OutboundRefused, match="decompressed"):
            await client.get(upstream.url)
    assert {request.headers["accept-encoding"] for request in upstream.requests} == {"identity"}


@pytest.mark.parametrize(("pack", "encoding"), [(gzip.compress, "gzip"), (zlib.compress, "deflate")])
@pytest.mark.parametrize("cut", [1, 8, 20])
async def test_truncated_compressed_body_is_refused(upstream: Upstream, pack: Any, encoding: str, cut: int) -> None:
    upstream.say(reply(pack(bytes(range(256)))[:-cut], headers={"Content-Encoding": encoding}))
    async with await client_for("any") as client:
        with pytest.raises(OutboundRefused, match="decompressed"):
            await client.get(upstream.url)


async def test_compressed_body_may_be_empty_or_have_several_members(upstream: Upstream) -> None:
    async with await client_for("any") as client:
        upstream.say(reply(b"", headers={"Content-Encoding": "gzip"}))
        assert (await client.get(upstream.url)).content == b""
        upstream.say(reply(gzip.compress(b"one, ") + gzip.compress(b"two"), headers={"Content-Encoding": "gzip"}))
        assert (await client.get(upstream.url)).content == b"one, two"
        for refused in (gzip.compress(b"one") + b"more", gzip.compress(b"") * 1001):
            upstream.say(reply(refused, headers={"Content-Encoding": "gzip"}))
            with pytest.raises(OutboundRefused, match="decompressed"):
                await client.get(upstream.url)


async def test_encoding_that_was_not_requested_is_refused(upstream: Upstream) -> None:
    upstream.say(reply(b"...", headers={"Content-Encoding": "br"}))
    async with await client_for("any") as client:
        with pytest.raises(OutboundRefused, match="not requested"):
            await client.get(upstream.url)


async def test_compression_bomb_is_never_decompressed_whole() -> None:
    largest = 0

    async def packed() -> AsyncIterator[bytes]:
        yield gzip.compress(b"\0" * 30_000_000)

    response = httpx.Response(200, headers={"content-encoding": "gzip"}, content=packed())
    with pytest.raises(OutboundRefused):
        async for piece in BoundedBody(response, 1_000_000):
            largest = max(largest, len(piece))
    assert 0 < largest <= 65_536


async def test_body_that_never_comes_is_not_waited_for(upstream: Upstream, network: Network) -> None:
    network.unreachable = set()

    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(TimeoutError):
        await fetch("https://example.com/", seconds=0.05, resolver=never)


async def test_body_without_an_end_is_not_read_on(upstream: Upstream) -> None:
    upstream.say([head({"Content-Type": "text/plain"}), b"a" * 100_000, HANG])
    async with await client_for("any", max_bytes=50_000) as client:
        with pytest.raises(OutboundRefused):
            await client.get(upstream.url)
    await upstream.requests[0].gone.wait()


async def test_statuses_are_returned_and_not_raised(upstream: Upstream, network: Network) -> None:
    network.responses = [http(b"gone", status="404 Not Found")]
    page = await fetch("https://example.com/", resolver=Names(example_com=[[PUBLIC]]))
    assert (page.status_code, page.content) == (404, b"gone")


async def test_httpcore_has_the_private_names_that_are_used() -> None:
    """`GuardedTransport` replaces this pool, a private name in httpx."""
    assert isinstance(httpx.AsyncHTTPTransport()._pool, httpcore.AsyncConnectionPool)


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        ("text/event-stream; charset=utf-8", "text/event-stream; charset=utf_8"),
        ("text/html; charset=ISO-8859-1; a=b", "text/html; charset=cp1252"),
        ("text/event-stream; charset=punycode", "text/event-stream"),
        ("text/event-stream; charset*=utf-8''punycode", "text/event-stream"),
        ("text/event-stream; charset*0=puny; charset*1=code", "text/event-stream"),
        ('text/event-stream; Charset = "idna"', "text/event-stream"),
    ],
)
async def test_response_has_a_charset_only_if_texts_of_others_may_be_decoded_by_it(
    upstream: Upstream, declared: str, given: str
) -> None:
    upstream.say(reply(b"...", headers={"Content-Type": declared}))
    async with await client_for("any") as client:
        assert (await client.get(upstream.url)).headers["content-type"] == given
