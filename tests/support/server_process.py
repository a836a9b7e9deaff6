"""A real server in a process and a directory of its own, to be started, stopped, paused and restarted by tests."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

START_TIMEOUT = 120.0  # seconds; a busy machine


class ServerProcess(ABC):
    """As a context manager it is started on entering and gone, with its directory, on leaving."""

    name: str  # of the program
    stopping: signal.Signals  # ends it in good order
    killing: signal.Signals  # ends it as in a crash
    slow_options: str  # store URL options with which slowness is not an outage

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for a store."""

    @property
    def patient_url(self) -> str:
        """A store URL with which slowness is not an outage."""
        return f"{self.url}?{self.slow_options}"

    @property
    def pid(self) -> int:
        """The process of the server; PostgreSQL's children serve the connections."""
        assert self._process is not None
        return self._process.pid

    @abstractmethod
    def start(self) -> None:
        """Start the server, and return when it answers; fail the test if it does not."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether the server answers."""

    def stop(self, how: signal.Signals | None = None) -> None:
        """End the server by a signal, and return when it has ended."""
        if self._process is not None:
            self._process.send_signal(how or self.stopping)
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Let it accept connections without answering, like a hanging server."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self.resume()
            self.stop(self.killing)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _launch(self, command: Sequence[str | Path], **options: Any) -> bool:
        """Run the program; True if it answers, False if it exits or takes too long."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._directory, stdout=log, stderr=log, **options)
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            if self.answers():
                return True
            time.sleep(0.01)
        self.stop(signal.SIGKILL)
        return False

    def _not_started(self) -> NoReturn:
        pytest.fail(f"{self.name} did not start:\n{self._log.read_text()[-2000:]}", pytrace=False)

    def _signal(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
