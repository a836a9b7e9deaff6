"""
Remove secrets from everything that is shown, stored or logged.

Reading a request removes tools' credentials; only code that runs a tool can restore them, for the same request
(`ToolSecrets.restore`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit

_ToolFields: TypeAlias = Mapping[str, object]
_Key: TypeAlias = tuple[str, str, str, str]  # type, label, connector and origin

REDACTED = "***"

# Matches end before a quote or backslash, so that JSON lines stay valid. Every pattern runs in linear time.
_PATTERNS = (
    (re.compile(r"\b(Bearer|Basic)\s+[^\s\"',;\\]+", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"\b(api[-_]key\b[\\\"']*\s*[:=]\s*[\\\"']*)[^\s\"',;\\]+", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"\b(api key provided: )[^\s\"',;\\]+", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(://[^/\s:@\"']*:)[^/\s@\"'\\]+@"), rf"\1{REDACTED}@"),
    (re.compile(r"\bsk-[\w*.-]{6,}", re.IGNORECASE), REDACTED),
    # A key contains a digit, or a star if masked, unlike `hf-internal-testing`.
    (
        re.compile(
            r"\b(?:pk|rk|csk|gsk|xai|hf|fw|r8|nvapi|pplx|tgp)[-_](?=[\w*.-]{0,40}[\d*])[\w*.-]{8,}", re.IGNORECASE
        ),
        REDACTED,
    ),
    (re.compile(r"\bAIza[\w-]{20,}"), REDACTED),  # Google's
    # JSON web tokens; the lookbehind keeps the time linear.
    (re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.[\w.-]+"), REDACTED),
)
_MIN_LENGTH = 6  # a shorter secret would be removed from ordinary words

# Every match contains one of these in lower case. This check costs a tenth of the patterns' time.
_MARKS = ("bearer", "basic", "api", "://", "aiza", "eyj")
_PREFIX_MARK = re.compile("[-_](?<=[prs]k.|ai.|hf.|fw.|r8.|pi.|lx.|gp.)")  # the end of a key's prefix

# Entirely secret fields, at any depth in a tool.
_CREDENTIALS = frozenset(
    ["authorization", "headers", "extra_headers", "api_key", "access_token", "client_secret", "password"]
)
# Fields with a JSON Schema or a grammar, where the names above can be parameter names.
_SCHEMAS = frozenset(["parameters", "input_schema", "output_schema", "schema", "format"])


def redact(text: str) -> str:
    if text.isascii():  # non-ASCII letters can match ASCII letters in a pattern
        lower = text.lower()
        if not any(mark in lower for mark in _MARKS) and not _PREFIX_MARK.search(lower):
            return text
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


class Redactor:
    """Redacts known secrets, including their JSON encodings, and text that resembles secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= _MIN_LENGTH}
        known |= {json.dumps(secret)[1:-1] for secret in known}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None

    def __call__(self, text: str) -> str:
        return redact(self.without_known(text))

    def without_known(self, text: str) -> str:
        return self._known.sub(REDACTED, text) if self._known else text


def without_password(url: str) -> str:
    user, at, rest = urlsplit(url).netloc.rpartition("@")
    return url.replace(f"{user}{at}{rest}", f"{REDACTED}@{rest}", 1) if at else url


class ToolSecrets:
    """A request's tools with credentials. Never stored, and not printable."""

    __slots__ = ("_tools",)

    def __init__(self) -> None:
        self._tools: dict[_Key, _ToolFields] = {}

    def __repr__(self) -> str:
        return f"ToolSecrets({len(self._tools)} tools)"

    def restore(self, tool: _ToolFields) -> _ToolFields:
        """
        Add the tool's secrets from this request, if any.

        Tools are identified by type, `server_label` (or `name`), `connector_id` and the origin of `server_url`, so
        secrets for one server are never sent to another. The first such tool's secrets apply.
        """
        return self._tools.get(_key(tool), tool)

    def redact(self, tools: Sequence[object]) -> list[Any]:
        return [self._redact(tool) for tool in tools]

    def redact_items(self, items: Sequence[object]) -> list[Any]:
        return [
            {**item, "tools": self.redact(tools)}
            if isinstance(item, dict) and isinstance(tools := item.get("tools"), list)
            else item
            for item in items
        ]

    def _redact(self, tool: object) -> object:
        if not isinstance(tool, dict):
            return tool
        redacted = without_credentials(tool)
        if isinstance(inner := tool.get("tools"), list):
            redacted["tools"] = self.redact(inner)
        elif redacted != tool:
            self._tools.setdefault(_key(redacted), tool)
        return redacted


def without_credentials(value: object) -> Any:
    """
    A tool, or part of a tool, without credentials.

    `server_url` keeps only its origin, because a path can also be a secret. `domain_secrets` lose their values, and
    skills their archives, which can be large.
    """
    if isinstance(value, list):
        return [without_credentials(one) for one in value]
    if not isinstance(value, dict):
        return value
    shown: dict[str, object] = {}
    for name, field in value.items():
        if name in _SCHEMAS:
            shown[name] = field
        elif name == "domain_secrets":
            secrets = field if isinstance(field, list) else []
            shown[name] = [
                {key: secret[key] for key in ("domain", "name") if key in secret}
                for secret in secrets
                if isinstance(secret, dict)
            ]
        elif name == "skills" and isinstance(field, list):
            shown[name] = [_without_archive(skill) for skill in field]
        elif name == "server_url":
            if origin := origin_of(field):
                shown[name] = origin
        elif name not in _CREDENTIALS:
            shown[name] = without_credentials(field)
    return shown


def origin_of(url: object) -> str | None:
    """Scheme, host and port; None if not a URL."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if not parts or not parts.scheme or not parts.hostname:
            return None
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port is not None else "")
    except ValueError:  # an unbalanced bracket, or a non-numeric port
        return None


def _without_archive(skill: object) -> object:
    source = skill.get("source") if isinstance(skill, dict) else None
    if not isinstance(skill, dict) or not isinstance(source, dict):
        return skill
    return {**skill, "source": {name: value for name, value in source.items() if name != "data"}}


def _key(tool: _ToolFields) -> _Key:
    label, connector = tool.get("server_label") or tool.get("name"), tool.get("connector_id")
    named = (label if isinstance(label, str) else "", connector if isinstance(connector, str) else "")
    return str(tool.get("type")), *named, origin_of(tool.get("server_url")) or ""
