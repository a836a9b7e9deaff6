"""IP addresses and loopback names in hosts."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


def parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address without brackets; None for names."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    address = parse_address(host)
    return address.is_loopback if address else host == "localhost" or host.endswith(".localhost")
