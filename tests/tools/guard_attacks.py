"""
Attempts by callers and models to send the server's requests to forbidden addresses: `ATTACKS`, by name.

`Network` knows a few names, and records the addresses of connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpcore

from app.tools.guard import AddressPolicy

PUBLIC, OTHER = "93.184.216.34", "8.8.8.8"

# DNS answers by name, in order; the last answer stays.
NAMES: Mapping[str, Sequence[Sequence[str]]] = {
    "example.com": [[PUBLIC]],
    "mcp.example.com": [[PUBLIC]],
    "other.example": [[OTHER]],
    "localhost": [["127.0.0.1", "::1"]],
    "inward.example.com": [["10.0.0.1"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "both.example.com": [[PUBLIC, "10.0.0.1"]],
    "mapped.example.com": [["::ffff:10.0.0.1"]],
    "nat64.example.com": [["64:ff9b::a9fe:a9fe"]],
    "local-nat64.example.com": [["64:ff9b:1::a00:1"]],
    "sixtofour.example.com": [["2002:a9fe:a9fe::1"]],
    "siit.example.com": [["::ffff:0:7f00:1"]],
    "link.example.com": [["fe80::1%eth0"]],
    "rebinding.example.com": [[PUBLIC], ["127.0.0.1"]],
    "aws.example.com": [["fd00:ec2::254"]],
    "aws-pods.example.com": [["fd00:ec2::23"]],
    "google.example.com": [["fd20:ce::254"]],
    "azure.example.com": [["168.63.129.16"]],
    "alibaba.example.com": [["100.100.100.200"]],
    "oracle.example.com": [["192.0.0.192"]],
    "any.example.com": [["0.0.0.0"]],
    "broadcast.example.com": [["255.255.255.255"]],
}


class Attack(NamedTuple):
    """A URL, and the server behind it."""

    url: str
    redirects: Sequence[str] = ()  # the servers' redirects, in order
    allowed: Sequence[str] = ("https://*/*",)  # `allow_urls`
    policy: AddressPolicy = "public"
    reaches: Sequence[str] = ()  # addresses to which connections may be made before the refusal


def _spelled(*urls: str) -> dict[str, Attack]:
    return {f"URL {url.encode('unicode_escape').decode()[:60]}": Attack(url) for url in urls}


def _named(policy: AddressPolicy, *names: str) -> dict[str, Attack]:
    return {f"{name}, {policy}": Attack(f"https://{name}/", policy=policy) for name in names}


def _led(policy: AddressPolicy, *locations: str) -> dict[str, Attack]:
    return {
        f"redirect to {location[:60]}, {policy}": Attack(
            "https://example.com/", [location], policy=policy, reaches=[PUBLIC]
        )
        for location in locations
    }


def _paths(*paths: str) -> dict[str, Attack]:
    """URLs that escape `/v1/*`, on servers that decode repeatedly or support path parameters."""
    pattern = ["https://mcp.example.com/v1/*"]
    return {f"path {path}": Attack(f"https://mcp.example.com{path}", allowed=pattern) for path in paths}


def _hosts(pattern: str, *urls: str) -> dict[str, Attack]:
    return {f"{url} for {pattern}": Attack(url, allowed=[pattern]) for url in urls}


_OUTWARD = ("example.com", "mcp.example.com", "other.example", "rebinding.example.com")
_INWARD = [name for name in NAMES if name not in _OUTWARD]
# Names refused even if an operator allows private addresses.
_NEVER = [
    "metadata.google.internal",
    "nat64.example.com",
    "sixtofour.example.com",
    "siit.example.com",
    "link.example.com",
    "aws.example.com",
    "aws-pods.example.com",
    "google.example.com",
    "azure.example.com",
    "alibaba.example.com",
    "oracle.example.com",
    "any.example.com",
    "broadcast.example.com",
]

ATTACKS: dict[str, Attack] = {
    **_spelled(
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "unix:///var/run/docker.sock",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
        "data:text/html,hello",
        "javascript:alert(1)",
        "//example.com/",
        "https:/example.com/",
        "https:///etc/passwd",
        "https://user@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com:443@127.0.0.1/",
        "https://example.com#@127.0.0.1/\r\n",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://127.0.0.1%2f@example.com/",
        "https://①②⑦.⓪.⓪.①/",
        "https://127。0。0。1/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:0:127.0.0.1]/",
        "https://[0:0:0:0:0:ffff:7f00:1]/",
        "https://[64:ff9b::127.0.0.1]/",
        "https://[64:ff9b:1::8.8.8.8]/",
        "https://[fe80::1%25eth0]/",
        "https://[fd00:ec2::254]/latest/meta-data/",
        "https://169.254.169.254/latest/meta-data/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com\t.evil.com/",
        "https://example.com\x00.evil.com/",
        "https://example.com%00.evil.com/",
        "https://%31%32%37.0.0.1/",
        "https://localhost%2eexample.com/",
        "https://example..com/",
        "https://.example.com/",
        "https://example.com:8443/",
        "https://example.com:99999/",
        "https://example.com/" + "a" * 9000,
    ),
    **_named("public", *_INWARD),
    **_named("private", *_NEVER),
    **_led("public", "https://localhost/", "https://inward.example.com/", "https://127.0.0.1/", "https://[::1]/"),
    **_led(
        "public", "http://example.com/", "file:///etc/passwd", "https://user@example.com/", "https://example.com:22/"
    ),
    **_led("private", "https://169.254.169.254/latest/", "https://metadata.google.internal/", "http://localhost/"),
    "redirects for ever": Attack("https://example.com/", ["https://example.com/"] * 20, reaches=[PUBLIC]),
    "redirect to another host than allowed": Attack(
        "https://mcp.example.com/", ["https://other.example/"], ["https://*.example.com/*"], reaches=[PUBLIC]
    ),
    "redirect out of the path": Attack(
        "https://mcp.example.com/v1/mcp",
        ["https://mcp.example.com/admin"],
        ["https://mcp.example.com/v1/*"],
        reaches=[PUBLIC],
    ),
    "redirect out of the path, by a relative location": Attack(
        "https://mcp.example.com/v1/mcp", ["../admin"], ["https://mcp.example.com/v1/*"], reaches=[PUBLIC]
    ),
    "a name that changes its address before a redirect": Attack(
        "https://rebinding.example.com/", ["https://rebinding.example.com/again"], reaches=[PUBLIC]
    ),
    **_paths(
        "/v2/mcp",
        "/v1/../v2/mcp",
        "/v1/%2e%2e/v2/mcp",
        "/v1/%2E%2E/v2/mcp",
        "/v1/..%2fv2/mcp",
        "/v1/..%5cv2/mcp",
        "/v1/%252e%252e/v2/mcp",
        "/v1/..%252fv2/mcp",
        "/v1/..;/v2/mcp",
        "/v1/..;x=y/v2/mcp",
        "/v1/x/../../v2/mcp",
        "/V1/mcp",
        "/v1",
    ),
    **_hosts(
        "https://*.example.com/*",
        "https://example.com/",
        "https://evil.com/.example.com/",
        "https://evil.com?.example.com/",
        "https://evil.com#.example.com/",
        "https://badexample.com/",
        "https://mcp.example.com.evil.com/",
        "https://mcp.example.com:8443/",
        "http://mcp.example.com/",
    ),
    **_hosts(
        "http://localhost:*/*", "https://localhost:9000/", "http://localhost.evil.com:9000/", "http://127.0.0.1:9000/"
    ),
}


class Network(httpcore.AsyncMockBackend):
    """The network, based on `httpcore`'s mock: servers that redirect, or answer hello."""

    def __init__(self, redirects: Sequence[str] = (), library: Any = httpcore) -> None:
        super().__init__([])
        self.connected: list[str] = []
        self._library = library
        self._redirects = [*redirects]
        self._names = {name: [*answers] for name, answers in NAMES.items()}

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Resolve a name as `NAMES` says; an address is its own."""
        answers = self._names.get(host.rstrip("."), [[host]])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        self.connected.append(host)
        location = self._redirects.pop(0) if self._redirects else None
        status = f"307 Moved\r\nLocation: {location}" if location else "200 OK"
        answer = f"HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        return self._library.AsyncMockStream([answer.encode()])
