"""When a backend says one may ask again: in seconds, however it says so."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_ONE = r"\d+(?:\.\d+)? ?(?:ms|milliseconds?|seconds?|secs?|minutes?|mins?|hours?|[smhd])(?![a-z])"
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|milli|[smhd])[a-z]*")
# Groq and OpenAI say "try again in 7.66s", Gemini "retry in 34.07s" and `"retryDelay": "34s"`, Azure "retry after 6
# seconds".
_IN_WORDS = re.compile(rf'(?:(?:try again|retry) (?:in|after) |"retryDelay":\s*")((?:{_ONE} ?)+)', re.IGNORECASE)
_RESETS = re.compile(r"(?:x-|anthropic-)?ratelimit-(?:reset(-\w+)?|(\w+)-reset)")


def retry_after(headers: Mapping[str, str], text: str = "", now: float | None = None) -> float | None:
    """
    Return for how many seconds to wait, or None if nothing is said of it.

    In this order: `retry-after-ms`, `Retry-After` (seconds or a date), the resets of the limits that are used up, the
    words of the body. `now` is Unix time.
    """
    now = time.time() if now is None else now
    if (wait := _number(headers.get("retry-after-ms", ""))) is not None:
        return wait / 1000
    if said := headers.get("retry-after"):
        wait = _number(said)
        return wait if wait is not None else _until(said, now)
    if resets := list(_resets(headers, now)):
        used_up = [wait for wait, remaining in resets if remaining == "0"]
        return max(used_up) if used_up else min(wait for wait, _ in resets)
    match = _IN_WORDS.search(text)
    return _duration(match[1]) if match else None


def _resets(headers: Mapping[str, str], now: float) -> Iterator[tuple[float, str | None]]:
    for name, value in headers.items():
        if not _RESETS.fullmatch(name):
            continue
        number = _number(value)
        if number is None:
            wait = _duration(value) if _DURATION.match(value) else _until(value, now)
        elif number > 1e9:  # Unix time, in seconds, or in milliseconds as OpenRouter has it
            wait = max(0.0, (number / 1000 if number > 1e11 else number) - now)
        else:
            wait = number
        if wait is not None:
            yield wait, headers.get(name.replace("reset", "remaining"))


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else None


def _duration(text: str) -> float:
    found = _DURATION.findall(text.lower())
    return sum(float(amount) * _UNITS["ms" if unit == "milli" else unit] for amount, unit in found)


def _until(text: str, now: float) -> float | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = parse(text)
        except ValueError:
            continue
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    return None
