"""Read hosts and waits from HTTP headers, without I/O."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
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


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_ONE = r"\d+(?:\.\d+)? ?(?:ms|milliseconds?|seconds?|secs?|minutes?|mins?|hours?|[smhd])(?![a-z])"
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|milli|[smhd])[a-z]*")
# Groq and OpenAI: "try again in 7.66s"; Gemini: "retry in 34.07s" and `"retryDelay": "34s"`; Azure: "retry after 6
# seconds"; GitHub: "wait 42 seconds".
_IN_TEXT = re.compile(
    rf'(?:(?:try again|retry) (?:in|after) |\bwait (?:for )?|"retryDelay":\s*")((?:{_ONE} ?)+)', re.IGNORECASE
)
_IN_A_FIELD = re.compile(r'"retry_?after(?:_seconds)?":\s*"?(\d+(?:\.\d+)?)"?\s*[,}]', re.IGNORECASE)
# OpenRouter quotes headers in the body.
_IN_HEADERS = re.compile(r'"([\w-]{0,20}ratelimit-[\w-]{1,40})":\s*"([^"]+)"', re.IGNORECASE)
_LONGEST = 366 * 86400.0  # seconds; a larger number is not a wait
_RESETS = re.compile(r"(?:x-|anthropic-)?ratelimit-(?:reset(-\w+)?|(\w+)-reset)")


def retry_after(headers: Mapping[str, str], text: str = "", now: float | None = None) -> float | None:
    """
    Seconds to wait, at most a year; None if unknown.

    Sources, by precedence: `retry-after-ms`, `Retry-After` (seconds, a duration or a date), the resets of exhausted
    limits, text in the body, body fields, and headers quoted in the body. `now` is Unix time.
    """
    wait = _wait(headers, text, time.time() if now is None else now)
    return None if wait is None else min(wait, _LONGEST)


def _wait(headers: Mapping[str, str], text: str, now: float) -> float | None:
    if (wait := _number(headers.get("retry-after-ms", ""))) is not None:
        return wait / 1000
    if (value := headers.get("retry-after")) and (wait := _seconds(value, now)) is not None:
        return wait
    if (wait := _reset(headers, now)) is not None:
        return wait
    if match := _IN_TEXT.search(text):
        return _duration(match[1])
    if match := _IN_A_FIELD.search(text):
        return float(match[1])
    return _reset({name.lower(): value for name, value in _IN_HEADERS.findall(text)}, now)


def _reset(headers: Mapping[str, str], now: float) -> float | None:
    resets = list(_resets(headers, now))
    used_up = [wait for wait, remaining in resets if remaining == "0"]
    return max(used_up) if used_up else min((wait for wait, _ in resets), default=None)


def _resets(headers: Mapping[str, str], now: float) -> Iterator[tuple[float, str | None]]:
    for name, value in headers.items():
        if not _RESETS.fullmatch(name):
            continue
        number = _number(value)
        if number is None:
            wait = _seconds(value, now)
        elif number > 1e9:  # Unix time, in seconds, or in OpenRouter's milliseconds
            wait = max(0.0, (number / 1000 if number > 1e11 else number) - now)
        else:
            wait = number
        if wait is not None:
            yield wait, headers.get(name.replace("reset", "remaining"))


def _seconds(text: str, now: float) -> float | None:
    if (number := _number(text)) is not None:
        return number
    return _duration(text) if _DURATION.match(text) else _until(text, now)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else None


def _duration(text: str) -> float:
    parts = _DURATION.findall(text.lower())
    return sum(float(amount) * _UNITS["ms" if unit == "milli" else unit] for amount, unit in parts)


def _until(text: str, now: float) -> float | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = parse(text)
            return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
        except (ValueError, OverflowError):
            continue
    return None
