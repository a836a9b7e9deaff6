"""The settings table `[tools.code_interpreter]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field

MemoryLimit = Literal["1g", "4g", "16g", "64g"]


def _provider(provider: object) -> object:
    if provider != "bubblewrap":
        raise ValueError("must be bubblewrap, or mcp:NAME with the name of a server of [tools.mcp.servers]")
    return provider


def _under_usr(python: str) -> str:
    if python and not python.startswith("/usr/"):
        raise ValueError("must be a path under /usr, such as /usr/bin/python3, the only host directory in containers")
    return python


class CodeSettings(BaseModel):
    """Containers, in which the model's code runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    provider: Annotated[Literal["bubblewrap"], BeforeValidator(_provider)]
    """What the containers are made with: `bubblewrap`, a sandbox on this machine (Linux). With `mcp:NAME` a server of
    `[tools.mcp.servers]` runs the code: see `app.tools.mcp.code`."""
    python: Annotated[str, AfterValidator(_under_usr)] = ""
    """The Python of the containers, under `/usr`; left out: `/usr/bin/python3`, or that of `/usr/local`."""
    memory_limit: MemoryLimit = "1g"
    """The most memory that a container may have; what a request without a limit of its own gets is `1g`."""
    disk: ByteSize = Field(ByteSize(256 * 1024 * 1024), ge=1024 * 1024)
    """How much the files of a container may take. They are in memory, beside `memory_limit`."""
    processes: int = Field(64, ge=4, le=4096)
    """Processes and threads of one container."""
    cpus: int = Field(1, ge=1)
    """CPUs that one container may use."""
    call_seconds: float = Field(60, gt=0, le=3600)
    """Seconds that one call may take."""
    idle_minutes: int = Field(20, ge=1, le=24 * 60)
    """Minutes after its last use in which a container is deleted, with its files."""
    max_containers: int = Field(16, ge=1)
    """Containers of all callers that run at the same time. If another one is needed, the one that has been idle for
    longest is put away: its processes end, and its files are kept."""
    max_key_containers: int | None = Field(None, ge=1)
    """Containers of one API key that run at the same time; left out: three quarters of `max_containers`, or all on a
    server without keys."""
    saved_files: ByteSize = Field(ByteSize(4 * 1024**3), ge=0)
    """How much the files of containers that were put away may take, in the folder for temporary files. Beyond that,
    those that have been idle for longest are deleted."""
    skills: Path | None = None
    """A folder of skills for `skill_reference`: each a folder with a `SKILL.md`, whose name is the `skill_id`."""
    max_output_chars: int = Field(100_000, ge=1000)
    """Characters of what one call prints; the rest is dropped."""


def memory_bytes(limit: MemoryLimit) -> int:
    return int(limit[:-1]) * 1024**3
