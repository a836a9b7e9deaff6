"""Object storage faults: the outcome for callers of files."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from app.storage.object_storage import PART
from tests.support.build import finish
from tests.support.logs import records_of
from tests.support.s3_server import S3Server
from tests.support.scripted import Scripted
from tests.support.serving import antiphon


class Fault(NamedTuple):
    """A row: the object storage's fault."""

    name: str
    hangs: bool

    @property
    def row(self) -> str:
        """The line in docs/faults.md."""
        test = f"test_objects.py::test_object_storage_fault_ends_as_documented[{self.name}]"
        return f"| {self.name} | 503 `store_unavailable` | works | work | `{test}` |"

    def harm(self, server: S3Server) -> None:
        server.pause() if self.hangs else server.stop(signal.SIGKILL)

    def heal(self, server: S3Server) -> None:
        server.resume() if self.hangs else server.start()


FAULTS = [Fault("Object storage: killed", hangs=False), Fault("Object storage: hung", hangs=True)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_object_storage_fault_ends_as_documented(
    fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    form: dict[str, Any] = {"files": {"file": ("a.txt", bytes(PART + 1))}, "data": {"purpose": "user_data"}}
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        timeouts = "timeout=2&connect_timeout=2" if fault.hangs else server.slow_options
        table = {"store_url": f"sqlite:///{tmp_path}/files.db", "content_url": f"{server.url}?{timeouts}"}
        async with antiphon(Scripted([finish("stop")]), tools={"file_search": table}) as url:
            async with httpx.AsyncClient(base_url=f"{url}/v1", trust_env=False, timeout=120) as http:

                async def succeed(method: str, path: str, **options: Any) -> httpx.Response:
                    """Repeat a request until it succeeds: a slow machine exceeds the timeout of the hung server."""
                    async with asyncio.timeout(300):
                        while (answer := await http.request(method, path, **options)).status_code != 200:
                            assert answer.json()["error"]["code"] == "store_unavailable"
                    return answer

                known, deleted = [(await succeed("POST", "/files", **form)).json()["id"] for _ in range(2)]
                with caplog.at_level(logging.INFO, logger="app.storage"):
                    await asyncio.to_thread(fault.harm, server)
                    asking = [http.post("/files", **form), http.get(f"/files/{known}/content")]
                    for answer in await asyncio.gather(*asking):
                        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
                        assert answer.headers["retry-after"] == "1"
                    assert len((await http.get("/files")).json()["data"]) == 2
                    assert (await http.delete(f"/files/{deleted}")).json()["deleted"]
                    plain = await http.post("/responses", json={"model": "m", "input": "x"})
                    assert plain.json()["status"] == "completed"
                    await asyncio.to_thread(fault.heal, server)
                    added = (await succeed("POST", "/files", **form)).json()["id"]
                for file_id in [added, known] if fault.hangs else [added]:  # a killed server has lost its objects
                    assert (await succeed("GET", f"/files/{file_id}/content")).content == bytes(PART + 1)
        logged = [(record.getMessage(), record.__dict__["store"]) for record in records_of(caplog, "app.storage")]
        messages = {message for message, name in logged if name.startswith("the object storage s3://")}
        assert {"store unavailable", "store recovered"} <= messages
