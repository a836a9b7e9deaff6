"""Declaring MCP servers: by a table, by other programs' configuration file, or by an option."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.core.access import hash_of
from app.tools.mcp.settings import MCPSettings, ToolFilter, needs_approval, read_settings


def read(table: dict[str, Any], environment: dict[str, str] | None = None, directory: Path = Path()) -> MCPSettings:
    return read_settings(table, environment or {}, directory)


def test_server_of_a_table_is_read() -> None:
    settings = read(
        {
            "servers": {
                "lab": {"url": "http://127.0.0.1:9000/mcp", "headers_env": {"Authorization": "LAB_TOKEN"}},
                "time": {"command": ["uvx", "mcp-server-time"], "require_approval": "never"},
            }
        },
        {"LAB_TOKEN": "abc"},
    )
    lab, time = settings.servers["lab"], settings.servers["time"]
    assert lab.headers["Authorization"].get_secret_value() == "Bearer abc"
    assert lab.require_approval is None and settings.require_approval == "always"
    assert (time.command, time.require_approval) == (["uvx", "mcp-server-time"], "never")
    assert "abc" not in repr(settings)


@pytest.mark.parametrize("value", ["Bearer abc", "Basic abc", "Token abc"])
def test_scheme_in_a_header_is_not_changed(value: str) -> None:
    table = {"servers": {"lab": {"url": "http://lab/mcp", "headers": {"authorization": value}}}}
    assert read(table).servers["lab"].headers["authorization"].get_secret_value() == value


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"servers": {"lab": {}}}, "servers.lab: must have either a `url` or a `command`"),
        ({"servers": {"lab": {"url": "http://lab", "command": ["x"]}}}, "servers.lab: must have"),
        ({"servers": {"lab": {"url": "lab:9000"}}}, "servers.lab.url: must be an http or https URL"),
        ({"servers": {"lab": {"urls": "http://lab"}}}, "servers.lab.urls: unknown key"),
        ({"servers": {"l/b": {"url": "http://lab"}}}, "'l/b' must contain only letters"),
        ({"servers": {"url": {"url": "http://lab"}}}, "must not contain the name 'url'"),
        ({"servers": {"lab": {"url": "http://lab", "headers_env": {"A": "NONE"}}}}, "variable NONE is not set"),
        ({"servers": {"lab": {"url": "http://lab", "headers": {"A": "x\r\ny"}}}}, "servers.lab.headers"),
        ({"servers": {"lab": {"url": "http://lab", "require_approval": "maybe"}}}, "servers.lab.require_approval"),
        ({"servers": {"lab": {"url": "http://lab", "timeout": 0}}}, "servers.lab.timeout"),
        ({"allow_urls": ["example.com"]}, "allow_urls.0: must be a URL"),
        ({"allow_urls": "https://example.com"}, "allow_urls"),
        ({"server": {}}, "server: unknown key"),
        ({"file": "none.json"}, "file: cannot read"),
    ],
)
def test_settings_that_are_invalid_are_named(table: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        read(table, directory=tmp_path)
    assert problem in str(error.value)


def test_problems_have_no_secret() -> None:
    with pytest.raises(ValueError) as error:
        read({"servers": {"lab": {"url": "lab", "headers": {"A": {"b": "SECRET"}}, "env": {"K": ["SECRET"]}}}})
    assert "SECRET" not in str(error.value)


FILE = {
    "mcpServers": {
        "time": {"command": "uvx", "args": ["mcp-server-time", "--local-timezone", "${ZONE:-UTC}"]},
        "github": {
            "type": "http",
            "url": "https://mcp.example.com/mcp",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
        },
        "old": {"type": "sse", "url": "https://old.example.com/sse", "alwaysAllow": ["read"]},
        "gone": {"command": "gone", "disabled": True},
        "env": {
            "command": "run",
            "env": {"KEY": "${env:TOKEN}", "N": 1},
            "cwd": "/tmp",
            "note": "theirs",
            "timeout": 60000,
        },
    }
}


def test_file_of_other_programs_is_read(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps(FILE))
    settings = read({"file": "mcp.json"}, {"TOKEN": "abc"}, tmp_path)
    assert set(settings.servers) == {"time", "github", "old", "env"}
    assert settings.servers["time"].command == ["uvx", "mcp-server-time", "--local-timezone", "UTC"]
    github = settings.servers["github"]
    assert (github.transport, github.headers["Authorization"].get_secret_value()) == ("http", "Bearer abc")
    old = settings.servers["old"]
    assert old.transport == "sse" and old.require_approval is not None
    assert not needs_approval(old.require_approval, "read", False) and needs_approval(
        old.require_approval, "write", False
    )
    env = settings.servers["env"]
    assert {name: value.get_secret_value() for name, value in env.env.items()} == {"KEY": "abc", "N": "1"}
    assert env.directory == "/tmp"


def test_table_overrides_the_file(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps(FILE))
    table = {"file": "mcp.json", "servers": {"time": {"url": "http://time/mcp"}}}
    settings = read(table, {"TOKEN": "abc"}, tmp_path)
    assert settings.servers["time"].url == "http://time/mcp" and "github" in settings.servers


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "must have an object `mcpServers`"),
        ('{"mcpServers": {"a": 1}}', "`mcpServers.a` must be an object"),
        ('{"mcpServers": {"a": {"command": "${NOT_THERE}"}}}', "variable NOT_THERE is not set"),
        ('{"mcpServers": {"a": {}}}', "servers.a: must have"),
    ],
)
def test_file_that_is_invalid_is_named(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(ValueError) as error:
        read({"file": "mcp.json"}, directory=tmp_path)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("entry", "url", "command"),
    [
        ("http://127.0.0.1:9000/mcp", "http://127.0.0.1:9000/mcp", []),
        ("https://lab.example/mcp?key=a=b", "https://lab.example/mcp?key=a=b", []),
        ("uvx mcp-server-time", None, ["uvx", "mcp-server-time"]),
        ("sh -c 'run me'", None, ["sh", "-c", "run me"]),
    ],
)
def test_url_or_command_alone_is_read(entry: str, url: str | None, command: list[str]) -> None:
    server = read({"servers": {"lab": entry}}).servers["lab"]
    assert (server.url, server.command) == (url, command)


@pytest.mark.parametrize("entry", ["", "  ", "sh -c 'run", "http://"])
def test_server_without_url_and_command_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"servers\.lab"):
        read({"servers": {"lab": entry}})


NEVER_READ = {"never": {"read_only": True}}
NAMED = {"always": {"tool_names": ["drop"]}, "never": {"tool_names": ["drop", "find", "get*"]}}


@pytest.mark.parametrize(
    ("setting", "name", "read_only", "needed"),
    [
        ("always", "find", True, True),
        ("never", "drop", False, False),
        (NEVER_READ, "find", True, False),
        (NEVER_READ, "find", False, True),
        (NAMED, "drop", False, True),
        (NAMED, "find", False, False),
        (NAMED, "get_all", False, False),
        (NAMED, "other", True, True),
        ({"always": {"read_only": False}, "never": {}}, "find", True, False),
        ({"always": {"read_only": False}, "never": {}}, "find", False, True),
        ({}, "find", True, True),
    ],
)
def test_approval_is_needed_by_the_calls_that_filters_name(
    setting: Any, name: str, read_only: bool, needed: bool
) -> None:
    server = read({"servers": {"lab": {"url": "http://lab", "require_approval": setting}}}).servers["lab"]
    assert server.require_approval is not None
    assert needs_approval(server.require_approval, name, read_only) is needed


def test_tools_are_allowed_by_filters() -> None:
    assert ToolFilter().matches("any", False)
    assert ToolFilter(tool_names=["search*"]).matches("search_docs", False)
    assert not ToolFilter(tool_names=["search*"]).matches("research", False)
    assert not ToolFilter(tool_names=[]).matches("any", True)
    assert not ToolFilter(tool_names=["a"], read_only=True).matches("a", False)


def test_servers_are_for_the_keys_that_are_named() -> None:
    digest = sha256(b"team-b").hexdigest()
    table = {"servers": {"lab": {"url": "http://lab", "keys": ["team-a", f"sha256:{digest}"]}}}
    lab = read(table).servers["lab"]
    assert lab.serves({hash_of("team-a")}) and lab.serves({f"sha256:{digest}"}) and lab.serves({hash_of("x"), "team-a"})
    assert not lab.serves({hash_of("team-c"), "team-c"}) and not lab.serves(())
