"""
Skills: folders with instructions in `SKILL.md`, mounted read-only in containers at `/mnt/skills`.

A request contains a ZIP archive (`inline`), or names a skill in the operator's folder (`skill_reference`). The model
gets names and descriptions, and reads files on demand.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag

from app.errors import InvalidRequest

MOUNT = "/mnt/skills"
MAX_SKILLS = 16  # per container
MAX_SKILL_FILES = 100  # per skill
MAX_SKILL_BYTES = 8 * 1024 * 1024  # per skill, unpacked
MAX_ARCHIVE = 8 * 1024 * 1024  # bytes per ZIP archive
MAX_STORED_SKILLS = 1024**3  # bytes for all inline skills
_ABOUT = (
    "These skills are available. Each skill is a read-only folder with instructions in `SKILL.md`. Before a task that "
    "a skill describes, read its `SKILL.md`:"
)
_FIELD = re.compile(r"(name|description):\s*(.*)")

SkillText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class SkillSource(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["base64"]
    media_type: Literal["application/zip"]
    data: Annotated[str, StringConstraints(max_length=MAX_ARCHIVE * 4 // 3 + 4)]


class InlineSkill(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["inline"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    description: SkillText
    source: SkillSource


class SkillReference(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["skill_reference"]
    skill_id: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    version: str | None = None


def _kind(value: object) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return "<skill_reference>" if kind == "skill_reference" else "<inline>"


DeclaredSkill: TypeAlias = Annotated[
    Annotated[InlineSkill, Tag("<inline>")] | Annotated[SkillReference, Tag("<skill_reference>")],
    Discriminator(_kind),
]
DeclaredSkills: TypeAlias = Annotated[list[DeclaredSkill], Field(max_length=MAX_SKILLS)]


class Skill(NamedTuple):
    name: str
    description: str
    directory: str

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.-]+", "-", self.name, flags=re.ASCII).strip(".-") or "skill"


class SkillFolder:
    """The operator's skills, and inline skills unpacked into a directory."""

    def __init__(self, operators: Path | None = None, directory: Path | None = None) -> None:
        """`operators` contains a folder per skill. All workers share `directory`; None with a single worker."""
        self._operators = operators
        self._directory = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()  # skills are unpacked in threads

    async def resolve(self, declared: Sequence[InlineSkill | SkillReference], param_path: str) -> list[Skill]:
        """Raises `InvalidRequest` with a field below `param_path`."""
        skills: list[Skill] = []
        for index, skill in enumerate(declared):
            try:
                if isinstance(skill, SkillReference):
                    found = await asyncio.to_thread(self._referenced, skill)
                else:
                    found = await asyncio.to_thread(self._unpacked, skill)
                if any(found.folder == other.folder for other in skills):
                    raise InvalidRequest(
                        f"Invalid 'skills': must not contain the skill '{found.folder}' twice.", param="name"
                    )
            except InvalidRequest as error:
                error.param = f"{param_path}[{index}].{error.param}"
                raise
            skills.append(found)
        return skills

    def close(self) -> None:
        """Delete this process's unpacked skills, unless workers share them."""
        if self._temporary:
            self._temporary.cleanup()

    def _referenced(self, skill: SkillReference) -> Skill:
        unknown = InvalidRequest(f"Skill '{skill.skill_id[:64]}' not found.", param="skill_id")
        if skill.version not in (None, "latest"):
            raise InvalidRequest("Invalid 'version': must be 'latest' or left out.", param="version")
        if self._operators is None or not re.fullmatch(r"[\w-][\w.-]*", skill.skill_id, re.ASCII):
            raise unknown
        folder = self._operators / skill.skill_id
        if folder.is_symlink() or not (folder / "SKILL.md").is_file():
            raise unknown
        name, description = read_heading((folder / "SKILL.md").read_bytes()[:65536].decode("utf-8", "replace"))
        return Skill(name or skill.skill_id, description, str(folder.absolute()))

    def _unpacked(self, skill: InlineSkill) -> Skill:
        try:
            data = base64.b64decode(skill.source.data, validate=True)
        except binascii.Error:
            raise InvalidRequest("The archive is not valid base64.", param="source.data") from None
        target = self._root() / hashlib.sha256(data).hexdigest()
        try:
            os.utime(target)  # protects the skill from `_make_room`
        except FileNotFoundError:
            self._unpack(read_archive(data), target)
        return Skill(skill.name, skill.description, str(target))

    def _unpack(self, files: Mapping[str, bytes], target: Path) -> None:
        self._make_room(sum(map(len, files.values())))
        with tempfile.TemporaryDirectory(prefix=".", dir=self._root()) as temporary:
            fresh = Path(temporary) / "skill"
            for path, content in files.items():
                (fresh / path).parent.mkdir(parents=True, exist_ok=True)
                (fresh / path).write_bytes(content)
            try:
                fresh.rename(target)
            except OSError:
                if not target.is_dir():  # unpacked by a concurrent request
                    raise

    def _root(self) -> Path:
        with self._lock:
            if self._directory is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="antiphon-skills-")
                self._directory = Path(self._temporary.name)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        return self._directory

    def _make_room(self, size: int) -> None:
        """Delete the least recently declared skills until `size` bytes fit."""
        unpacked: list[tuple[float, int, Path]] = []
        for path in self._root().glob("[0-9a-f]*"):
            with contextlib.suppress(FileNotFoundError):  # deleted by a concurrent request
                occupied = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                unpacked.append((path.stat().st_mtime, occupied, path))
        excess = sum(occupied for _, occupied, _ in unpacked) + size - MAX_STORED_SKILLS
        for _, occupied, path in sorted(unpacked):
            if excess <= 0:
                return
            shutil.rmtree(path, ignore_errors=True)
            excess -= occupied


def read_heading(text: str) -> tuple[str, str]:
    """Name and description from a `SKILL.md`'s front matter; "" if missing."""
    found = {"name": "", "description": ""}
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---":
        return "", ""
    field = ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        if match := _FIELD.match(line):
            field, value = match[1], match[2].strip()
            found[field] = "" if value in ("|", ">", "|-", ">-") else value.strip("\"'")
        elif field and line[:1].isspace():
            found[field] = f"{found[field]} {line.strip()}".strip()
        else:
            field = ""
    return found["name"][:64], found["description"][:1024]


def read_archive(data: bytes) -> dict[str, bytes]:
    """
    Files by path; raises `InvalidRequest`.

    `SKILL.md` is in the archive's root, or in its only top-level folder.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = dict(_read_members(archive))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError):
        raise _invalid("The archive is not a valid ZIP file.") from None
    if "SKILL.md" not in files:
        folders = {path.partition("/")[0] for path in files}
        prefix = f"{next(iter(folders), '')}/"
        if len(folders) != 1 or f"{prefix}SKILL.md" not in files:
            raise _invalid("The archive must contain SKILL.md at its root, or in its only folder.")
        files = {path.removeprefix(prefix): content for path, content in files.items()}
    return files


def _read_members(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    members = [member for member in archive.infolist() if not member.is_dir() and "__MACOSX/" not in member.filename]
    if len(members) > MAX_SKILL_FILES:
        raise _invalid(f"A skill must have at most {MAX_SKILL_FILES} files.")
    left = MAX_SKILL_BYTES
    seen: set[str] = set()
    for member in members:
        path = PurePosixPath(member.filename)
        mode = member.external_attr >> 16
        if (
            not path.parts
            or path.is_absolute()
            or ".." in path.parts
            or "\\" in member.filename
            or len(str(path)) > 512
        ):
            raise _invalid("The archive contains a path outside its root.")
        if not member.filename.isprintable() or any(len(part.encode()) > 255 for part in path.parts):
            raise _invalid("The archive contains an invalid file name.")
        if mode and not (stat.S_ISREG(mode) or stat.S_IFMT(mode) == 0):
            raise _invalid("The archive contains an entry that is not a regular file, such as a link.")
        if str(path) in seen or any(str(parent) in seen for parent in path.parents):
            raise _invalid("The archive contains a path twice.")
        seen.add(str(path))
        with archive.open(member) as file:
            content = file.read(left + 1)
        left -= len(content)
        if left < 0:
            raise _invalid(f"A skill must have at most {MAX_SKILL_BYTES} bytes.")
        yield str(path), content


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="source.data")


def read_skill_files(skills: Sequence[Skill]) -> dict[str, bytes]:
    """
    Skill files by container path.

    Skips links and files beyond the limits. A deleted skill has no files.
    """
    files: dict[str, bytes] = {}
    for skill in skills:
        left, count = MAX_SKILL_BYTES, 0
        root = Path(skill.directory)
        for folder, folders, names in os.walk(root):  # does not follow links
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                try:
                    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:
                    continue
                with os.fdopen(fd, "rb") as file:
                    status = os.fstat(fd)
                    if not stat.S_ISREG(status.st_mode) or status.st_size > left or count == MAX_SKILL_FILES:
                        continue
                    content = file.read(left)
                left, count = left - len(content), count + 1
                files[f"{MOUNT}/{skill.folder}/{path.relative_to(root)}"] = content
    return files


def describe_skills(skills: Sequence[Skill]) -> str:
    if not skills:
        return ""
    return "\n".join([f" {_ABOUT}", *(f"- {one.name}: {one.description} ({MOUNT}/{one.folder})" for one in skills)])
