"""The hosted tools `code_interpreter` and `shell`. Settings: `[tools.code_interpreter]`."""

from __future__ import annotations

import base64
import contextlib
import mimetypes
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.core.types.request import Item
from app.errors import APIError, InvalidRequest, NotFound
from app.loading import import_object
from app.tools import (
    Declaration,
    HostedFunction,
    HostedTool,
    Outcome,
    Report,
    Source,
    ToolCall,
    ToolHost,
    ToolSession,
    resources_of,
    text_parameters,
)
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.containers import Container, Containers, SandboxChannel
from app.tools.code_interpreter.files import ContainerFile, FileCopies
from app.tools.code_interpreter.settings import CodeSettings, MemoryLimit
from app.tools.code_interpreter.skills import DeclaredSkills, SkillFolder, describe_skills
from app.tools.files.records.attachments import Attachments
from app.tools.files.uploads import Files
from app.tools.validation import read_declaration, read_table

MAX_MOUNTS = 50  # files per declaration
MAX_COMMANDS = 32  # per shell call
MAX_CITED = 20  # files per call
MAX_SAVED_IMAGES = 4  # per call; image files that are also returned as images
MAX_SAVED_IMAGE_BYTES = 4 * 1024 * 1024
FIRST_MARK = 900_001  # for created files; other tools use lower numbers

_PYTHON = (
    "Run Python code in a sandbox without network access. Variables, imports and files are kept for later calls, as in "
    "a notebook. Returns the printed output and the value of the last expression. Write files for the user to "
    "/mnt/data. The user can see matplotlib figures."
)
_SHELL = (
    "Run shell commands in a sandbox without network access, in order. Returns their output. Files are kept for later "
    "calls. Write files for the user to /mnt/data."
)
_CODE_SCHEMA = text_parameters(code="Python code.")
_SHELL_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "commands": {"type": "array", "items": {"type": "string"}, "description": "Shell command lines."},
        "timeout_ms": {"type": "integer", "description": "Timeout of each command in milliseconds."},
        "max_output_length": {"type": "integer", "description": "Maximum number of output characters to return."},
    },
    "required": ["commands"],
    "additionalProperties": False,
}
_EXCEEDED = {
    "memory": "it used too much memory",
    "files": "it created too many files",
    "sockets": "it opened too many sockets",
}
_ENDINGS = {
    "timeout": "The code was stopped after {seconds:g} seconds.",
    "died": "The Python process ended (exit code {code}).",
    "too_large": "The code was stopped: its figures are too large.",
    "not_frozen": "The code was stopped: its processes cannot be paused.",
    **{limit: f"The code was stopped: {why}." for limit, why in _EXCEEDED.items()},
}
_FILES = (
    "Files were created. When you mention a file, write its marker after its name so that the user can download it:"
)
_LOST = {
    "variables": "The Python process was restarted. The variables of earlier calls are lost. The files are kept.",
    "files": "The container was restarted. The variables and files of earlier calls are lost.",
}
_TRUNCATED = "\n[Output truncated here.]"
_BY_MCP = "app.tools.mcp.code:MCPCodeInterpreter"


class NetworkPolicy(BaseModel):
    type: Literal["disabled"] = "disabled"


class ContainerOptions(BaseModel):
    type: Literal["auto", "container_auto"]
    file_ids: Annotated[list[str], Field(max_length=MAX_MOUNTS)] = []
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: DeclaredSkills | None = None


class ContainerReference(BaseModel):
    type: Literal["container_reference"]
    container_id: str


class CodeInterpreter(HostedTool):
    types = ("code_interpreter", "shell")

    def __init__(self, containers: Containers) -> None:
        self.containers = containers

    @property
    def resources(self) -> dict[str, object]:
        return {"containers": self.containers}

    def link(self, tools: Mapping[str, HostedTool]) -> None:
        """Connect uploaded files, and object storage for copies."""
        resources = resources_of(tools)
        files: Files | None = resources.get("files")
        attachments: Attachments | None = resources.get("attachments")
        self.containers.uploads = files
        if (days := self.containers.settings.kept_days) and files and attachments:
            self.containers.copies = FileCopies(attachments, days, files.max_owner_bytes)

    def declarations(self, key_names: Collection[str]) -> list[dict[str, object]]:
        return [
            {"type": "code_interpreter", "container": {"type": "auto"}},
            {"type": "shell", "environment": {"type": "container_auto"}},
        ]

    @classmethod
    def from_settings(cls, table: Mapping[str, object], host: ToolHost) -> HostedTool:
        """Raises `ValueError` for an invalid table, or if this machine cannot run sandboxes."""
        if str(table.get("provider")).startswith("mcp:"):
            tool: HostedTool = import_object(_BY_MCP).from_settings(table, host)
            return tool
        settings = read_table(CodeSettings, table)
        operators = host.directory / settings.skills.expanduser() if settings.skills else None
        if operators and not operators.is_dir():
            raise ValueError(f"skills: folder {str(settings.skills)!r} not found")
        bubblewrap = Bubblewrap(settings)
        bubblewrap.probe()
        if host.workers_directory:
            from app.tools.code_interpreter.shared import SharedContainers

            skills = SkillFolder(operators, host.workers_directory / "skills")
            return cls(SharedContainers(bubblewrap, host.workers_directory, skills))
        return cls(Containers(bubblewrap, SkillFolder(operators)))

    def open(self, declaration: Declaration) -> ToolSession | None:
        """None if the client runs the shell. Raises `InvalidRequest`."""
        tool = declaration.tool
        shell = tool["type"] == "shell"
        field = "environment" if shell else "container"
        value = declaration.secrets.get(field)  # as sent, with the skill archives
        if shell and (value is None or (isinstance(value, Mapping) and value.get("type") == "local")):
            return None
        param_path = f"{declaration.param_path}.{field}"
        model: type[ContainerOptions | ContainerReference] = ContainerOptions
        if not shell and isinstance(value, str):
            value, model = {"type": "container_reference", "container_id": value}, ContainerReference
        elif shell and isinstance(value, Mapping) and value.get("type") == "container_reference":
            model = ContainerReference
        elif not isinstance(value, Mapping):
            message = f"Invalid '{param_path}': must be a container id, or an object such as {{'type': 'auto'}}."
            raise InvalidRequest(message, param=param_path, code="missing_required_parameter")
        options = read_declaration(model, value, param_path, declaration.warnings)
        session_class = ShellSession if shell else PythonSession
        return session_class(self.containers, declaration, options, param_path)

    async def check(self) -> Mapping[str, str | None]:
        """The server only starts if sandboxes can be created."""
        return {"bubblewrap": None}

    async def aclose(self) -> None:
        await self.containers.aclose()


class _Session(ToolSession):
    def __init__(
        self,
        containers: Containers,
        declaration: Declaration,
        options: ContainerOptions | ContainerReference,
        param_path: str,
    ) -> None:
        self._containers, self._declaration = containers, declaration
        self._options, self._param_path = options, param_path
        self._container: Container | None = None

    async def _find(self, items: Sequence[Item]) -> Container:
        """Raises `APIError` with `param` set to the field."""
        owner, options, param_path = self._declaration.owner, self._options, self._param_path
        try:
            if isinstance(options, ContainerReference):
                self._container = await self._containers.get(owner, options.container_id)
            else:
                skills = await self._containers.skills.resolve(options.skills or (), "skills")
                self._container = await self._containers.for_conversation(
                    owner,
                    self._declaration.chain,
                    _earlier_containers(items),
                    file_ids=options.file_ids,
                    memory_limit=options.memory_limit,
                    skills=skills,
                )
        except APIError as error:
            if error.param == "container_id":
                error.param = f"{param_path}.container_id" if param_path.endswith("environment") else param_path
            elif error.param:
                error.param = f"{param_path}.{error.param}"
            raise
        return self._container

    async def _changed_files(self, sandbox: SandboxChannel) -> Sequence[ContainerFile]:
        assert self._container
        files = await self._containers.changes(self._container, sandbox)
        await self._containers.copy_files(self._container, sandbox, files[:MAX_CITED])
        return files

    def _sources(self, files: Sequence[ContainerFile], items: Sequence[Item]) -> tuple[list[Source], str]:
        """Citable sources, and a list for the model ("" without files)."""
        calls = sum(item.get("type") in _CALLS for item in items)
        marks = FIRST_MARK + (MAX_CITED * calls) % 90_000
        sources, lines = [], []
        for number, file in enumerate(files[:MAX_CITED], marks):
            annotation = {
                "type": "container_file_citation",
                "container_id": file.container_id,
                "file_id": file.id,
                "filename": file.filename,
            }
            sources.append(Source(annotation, f"【{number}】"))
            lines.append(f"【{number}】 {file.path}")
        if not lines:
            return [], ""
        return sources, "\n".join([_FILES, *lines])


class PythonSession(_Session):
    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        container = await self._find(items)
        fields = {"container_id": container.id}
        about = _PYTHON + describe_skills(container.skills)
        return [HostedFunction("code_interpreter", "code_interpreter_call", about, _CODE_SCHEMA, fields=fields)]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        container, settings = self._container, self._containers.settings
        assert container
        code = call.arguments.get("code")
        if not isinstance(code, str) or not code.strip():
            return Outcome.failed("`code` must be Python code.", {"outputs": []})
        try:
            async with self._containers.use(container) as sandbox:
                answer = await sandbox.request(
                    "python",
                    within=settings.call_seconds,
                    code=code,
                    timeout=settings.call_seconds,
                    limit=settings.max_output_chars,
                )
                files = await self._changed_files(sandbox)
                figures = answer.get("images")
                images = [
                    f"data:image/png;base64,{figure}"
                    for figure in (figures if isinstance(figures, list) else ())
                    if isinstance(figure, str) and figure.isascii()
                ]
                images = images or await self._image_files(sandbox, files)
        except APIError as error:
            return Outcome.failed(error.message, {"outputs": [{"type": "logs", "logs": error.message}]})
        logs = str(answer.get("logs") or "") + (_TRUNCATED if answer.get("cut") else "")
        ended, exceeded = str(answer.get("ended")), str(answer.get("exceeded") or "")
        ending = ""
        if ended != "done":
            ending = _ENDINGS.get(exceeded or ended, "The code was stopped.")
            ending = ending.format(seconds=settings.call_seconds, code=answer.get("exit_code"))
            ending += " Its variables are lost. The files are kept."
        elif exceeded:  # the kernel may have killed another process
            ending = f"A process was stopped: {_EXCEEDED.get(exceeded)}."
        if ending:
            logs = f"{logs}\n{ending}".lstrip("\n")
        sources, file_list = self._sources(files, call.items)
        outputs = [{"type": "logs", "logs": logs}] if logs else []
        outputs += [{"type": "image", "url": url} for url in images]
        note = _LOST.get(str(answer.get("lost")), "")
        result: str | list[Any] = "\n\n".join(filter(None, [note, logs, file_list])) or "(no output)"
        if images:
            text = {"type": "input_text", "text": f"{result}\n\nThe user can see the images."}
            result = [text, *({"type": "input_image", "image_url": url} for url in images)]
        return Outcome(result, {"outputs": outputs}, "failed" if ending else "completed", sources=sources)

    async def _image_files(self, sandbox: SandboxChannel, files: Sequence[ContainerFile]) -> list[str]:
        urls: list[str] = []
        for file in files:
            media_type = mimetypes.guess_type(file.filename)[0]
            if (
                media_type not in _IMAGES
                or not 0 < file.bytes <= MAX_SAVED_IMAGE_BYTES
                or len(urls) == MAX_SAVED_IMAGES
            ):
                continue
            with contextlib.suppress(NotFound):
                data = await self._containers.read(sandbox, file.path, size=MAX_SAVED_IMAGE_BYTES)
                urls.append(f"data:{media_type};base64,{base64.b64encode(data).decode()}")
        return urls


class ShellSession(_Session):
    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        container = await self._find(items)
        fields = {"environment": {"type": "container_reference", "container_id": container.id}}
        about = _SHELL + describe_skills(container.skills)
        return [HostedFunction("shell", "shell_call", about, _SHELL_SCHEMA, fields=fields)]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        container, settings = self._container, self._containers.settings
        assert container
        argument = call.arguments.get("commands")
        commands = [argument] if isinstance(argument, str) else argument
        seconds = settings.call_seconds
        timeout, limit = call.arguments.get("timeout_ms"), call.arguments.get("max_output_length")
        if isinstance(timeout, int) and timeout > 0:
            seconds = min(seconds, timeout / 1000)
        limit = min(limit, settings.max_output_chars) if isinstance(limit, int) and limit > 0 else None
        output = report.add("shell_call_output", call_id=call.call_id, max_output_length=limit)
        entries: list[dict[str, object]] = []
        sources: list[Source] = []
        status: Literal["completed", "incomplete"] = "incomplete"
        try:
            if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
                entries.append(_entry("", "`commands` must be a list of command lines.", 2))
                commands = []
            async with self._containers.use(container) as sandbox:
                for command in commands[:MAX_COMMANDS]:
                    entries.append(await self._command(sandbox, command, seconds, limit or settings.max_output_chars))
                files = await self._changed_files(sandbox)
                sources, file_list = self._sources(files, call.items)
                if file_list and entries:
                    entries[-1] = {**entries[-1], "stdout": f"{entries[-1]['stdout']}\n{file_list}".lstrip("\n")}
            status = "completed"
        except APIError as error:
            entries.append(_entry("", error.message, 1))
            status = "completed"
        finally:
            for index, entry in enumerate(entries):
                printed = {name: entry[name] for name in ("stdout", "stderr") if entry[name]}
                output.event("delta", command_index=index, delta=printed)
                output.event("done", command_index=index, output=[entry])
            output.close(status, output=entries)
        return Outcome("", sources=sources)

    async def _command(self, sandbox: SandboxChannel, command: str, seconds: float, limit: int) -> dict[str, object]:
        answer = await sandbox.request("shell", within=seconds, command=command, timeout=seconds, limit=limit)
        stdout, stderr = (str(answer.get(name) or "") for name in ("stdout", "stderr"))
        if answer.get("lost") == "files":
            stderr = f"{_LOST['files']}\n{stderr}"
        if exceeded := _EXCEEDED.get(str(answer.get("exceeded"))):
            stderr += f"\nThe command was stopped: {exceeded}."
        if answer.get("ended") == "timeout":
            return {"stdout": stdout, "stderr": stderr, "outcome": {"type": "timeout"}}
        code = answer.get("exit_code")
        return _entry(stdout, stderr.lstrip("\n"), code if isinstance(code, int) else 1)


_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_CALLS = ("code_interpreter_call", "shell_call")


def _entry(stdout: str, stderr: str, exit_code: int) -> dict[str, object]:
    return {"stdout": stdout, "stderr": stderr, "outcome": {"type": "exit", "exit_code": exit_code}}


def _earlier_containers(items: Sequence[Item]) -> list[str]:
    """Container ids from earlier calls, latest first."""
    ids: dict[str, None] = {}
    for item in reversed(items):
        environment = item.get("environment")
        container_id = environment.get("container_id") if isinstance(environment, Mapping) else item.get("container_id")
        if item.get("type") in _CALLS and isinstance(container_id, str):
            ids[container_id] = None
    return [*ids]
