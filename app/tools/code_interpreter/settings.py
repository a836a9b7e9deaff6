"""The settings table `[tools.code_interpreter]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from app.tools import SettingsTable

MemoryLimit = Literal["1g", "4g", "16g", "64g"]


def _provider(provider: object) -> object:
    if provider != "bubblewrap":
        raise ValueError("must be bubblewrap, or mcp:NAME with the name of a server of [tools.mcp.servers]")
    return provider


def _under_usr(python: str) -> str:
    if python and not python.startswith("/usr/"):
        raise ValueError("must be a path under /usr, such as /usr/bin/python3, the only host directory in containers")
    return python


class CodeSettings(SettingsTable):
    provider: Annotated[Literal["bubblewrap"], BeforeValidator(_provider)]
    """`bubblewrap`: sandboxes on this machine (Linux). `mcp:NAME`: a server in `[tools.mcp.servers]` runs the code; see
    `app.tools.mcp.code`."""
    python: Annotated[str, AfterValidator(_under_usr)] = ""
    """The containers' Python, under `/usr`. Default: `/usr/bin/python3`, or `/usr/local/bin/python3`."""
    memory_limit: MemoryLimit = "1g"
    """Maximum memory per container. Requests without a limit get `1g`."""
    disk: ByteSize = Field(ByteSize(256 * 1024 * 1024), ge=1024 * 1024)
    """Maximum size of a container's files, which are in memory in addition to `memory_limit`."""
    processes: int = Field(64, ge=4, le=4096)
    """Processes and threads per container."""
    cpus: int = Field(1, ge=1)
    """CPUs per container."""
    call_seconds: float = Field(60, gt=0, le=3600)
    """Time limit per call, in seconds."""
    idle_minutes: int = Field(20, ge=1, le=24 * 60)
    """Minutes after which an unused container is deleted, with its files."""
    max_containers: int = Field(16, ge=1)
    """Running containers of all callers. Above this limit, the longest idle container is suspended: its processes end,
    and its files are retained."""
    max_key_containers: int | None = Field(None, ge=1)
    """Running containers per API key. Default: three quarters of `max_containers`, or all on a server without keys."""
    saved_files: ByteSize = Field(ByteSize(4 * 1024**3), ge=0)
    """Maximum size of suspended containers' files, in the folder for temporary files. Above it, the longest idle
    containers are deleted."""
    kept_days: int = Field(30, ge=0, le=3650)
    """Days for which files written by calls can be downloaded after their container has ended. Requires a
    `content_url` in `[tools.file_search]`; 0 keeps none."""
    skills: Path | None = None
    """A folder of skills for `skill_reference`. Each skill is a folder with a `SKILL.md`, named by its `skill_id`."""
    max_output_chars: int = Field(100_000, ge=1000)
    """Output characters per call. Further output is dropped."""


def memory_bytes(limit: MemoryLimit) -> int:
    return int(limit[:-1]) * 1024**3
