"""`antiphon reload` reports how the server applied its settings."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cli.test_cli import TIMEOUT, environment, log_of, run, served, wait_for_log
from tests.support import fork_server
from tests.support.ports import free_port

KEY = '[keys.alice]\nhash = "sha256:{}"\n'.format("0" * 64)


def test_reload_of_a_file_that_only_the_server_knows_reports_its_refusal(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text("max_input_tokens = 100\n")
    with served(tmp_path, "--config", str(file)) as (process, address):
        port = address.rpartition(":")[2]
        file.write_text("max_input_tokens = 100\nmax_output_secnds = 5\n")
        refused = run(tmp_path, "reload", "--port", port)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"The new settings are invalid; process {process.pid} continues with the old ones:" in refused.stderr
        assert "max_output_secnds: unknown key" in refused.stderr
        assert "did you mean max_output_seconds?" in refused.stderr
        file.write_text("max_input_tokens = 200\nheartbeat = 9\n")
        reloaded = run(tmp_path, "reload", "--port", port)
        assert (reloaded.returncode, reloaded.stderr) == (0, "")
        assert reloaded.stdout.splitlines() == [
            f"Settings reloaded by process {process.pid}.",
            "Changed: max_input_tokens. Backends: default.",
            "Changed, but need a restart: ANTIPHON_HEARTBEAT.",
        ]
        assert "Changed: nothing." in run(tmp_path, "reload", "--port", port).stdout


def test_reload_with_invalid_settings_of_its_own_still_asks_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as (_, address):
        port = address.rpartition(":")[2]
        reloaded = run(tmp_path, "reload", ANTIPHON_PORT=port, ANTIPHON_LOG_LEVEL="loud")
        assert (reloaded.returncode, reloaded.stderr) == (0, "")


def test_reload_with_workers_reports_the_refusal_of_each(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(KEY)
    arguments = ("--workers", "2", "--store-url", "sqlite:///shared.db", "--config", str(file))
    with served(tmp_path, *arguments) as (process, address):
        wait_for_log(process, tmp_path, "Application startup complete", times=2)  # starting workers read the file
        file.write_text(KEY.replace("hash", "hsah"))
        refused = run(tmp_path, "reload", "--port", address.rpartition(":")[2])
        assert refused.returncode == 1
        assert refused.stderr.count("keys.alice.hsah: unknown key; did you mean hash?") == 1
        assert log_of(tmp_path).count("settings not reloaded") == 2


def test_reload_while_workers_start_waits_for_them(tmp_path: Path) -> None:
    port = free_port()
    command = ("serve", "--workers", "2", "--store-url", "sqlite:///shared.db", "--port", str(port))
    with (tmp_path / "serve.log").open("wb") as log:
        process = fork_server.start(*command, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stderr=log)
    try:
        wait_for_log(process, tmp_path, "Started parent process")
        reloaded = run(tmp_path, "reload", "--port", str(port))
        assert reloaded.returncode == 0, reloaded.stderr
        log_text = log_of(tmp_path)
        assert log_text.count("Started server process") == 2
        assert log_text.count("settings reloaded") >= 2
        assert " died" not in log_text
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def test_reload_without_a_server_names_the_pid_file(tmp_path: Path) -> None:
    refused = run(tmp_path, "reload", ANTIPHON_PID_FILE="server.pid")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "No running server of this user has the pid file server.pid." in refused.stderr


def test_reload_leaves_nothing_behind_when_the_server_ends(tmp_path: Path) -> None:
    with served(tmp_path, ANTIPHON_PID_FILE="server.pid"):
        assert run(tmp_path, "reload", ANTIPHON_PID_FILE="server.pid").returncode == 0
        assert [path.name for path in tmp_path.glob("server.pid*")] != []
    assert [path.name for path in tmp_path.glob("server.pid*")] == []
