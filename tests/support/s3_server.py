"""A private S3 server (moto's) with one bucket in memory."""

from __future__ import annotations

import re
import signal
import sys

import httpx

from tests.support.ports import free_port
from tests.support.server_process import ServerProcess

BUCKET = "antiphon-files"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": "s3cret-of-tests", "AWS_REGION": "us-east-1"}


class S3Server(ServerProcess):
    """The port is chosen at the first start and kept; a restarted server has an empty bucket."""

    name, stopping, killing = "moto", signal.SIGTERM, signal.SIGKILL
    slow_options = "timeout=60&connect_timeout=60"

    def __init__(self) -> None:
        super().__init__()
        self.port = 0

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/files"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a client finds the server."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def start(self) -> None:
        self.port = self.port or free_port()
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        if not self._launch(command):
            self._not_started()
        self._request("PUT", f"/{BUCKET}").raise_for_status()

    def answers(self) -> bool:
        try:
            return self._request("GET", "/moto-api/data.json").is_success
        except httpx.HTTPError:
            return False

    def objects(self) -> list[str]:
        """Return the names of all objects."""
        return re.findall("<Key>(.*?)</Key>", self._request("GET", f"/{BUCKET}?list-type=2").text)

    def unfinished(self) -> list[str]:
        """Return objects with open multipart uploads."""
        return re.findall("<Key>(.*?)</Key>", self._request("GET", f"/{BUCKET}?uploads").text)

    def _request(self, method: str, path: str) -> httpx.Response:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=60) as client:
            return client.request(method, path)
