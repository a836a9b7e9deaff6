"""Skills: in containers, where the model reads them, and nothing but their files."""

from __future__ import annotations

import asyncio
import base64
import errno
import io
import json
import os
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from app.errors import InvalidRequest
from app.tools.code_interpreter import skills
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.skills import InlineSkill, SkillFolder, read_archive, read_heading, read_skill_files
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.code_interpreter.test_code_interpreter import InterpreterServer, commands, logs, runs
from tests.tools.files.conftest import openai_client

HEADING = "---\nname: plotter\ndescription: Draws plots.\n---\n# How\nRead on.\n"


def archive(files: dict[str, str | bytes] | None = None, *, links: dict[str, str] | None = None) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as target:
        for path, content in (
            files if files is not None else {"SKILL.md": HEADING, "lib/go.py": "print('went')"}
        ).items():
            target.writestr(path, content)
        for path, to in (links or {}).items():
            info = zipfile.ZipInfo(path)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            target.writestr(info, to)
    return written.getvalue()


def inline(data: bytes | None = None, name: str = "plotter") -> dict[str, Any]:
    encoded = base64.b64encode(archive() if data is None else data).decode()
    source = {"type": "base64", "media_type": "application/zip", "data": encoded}
    return {"type": "inline", "name": name, "description": "Draws plots.", "source": source}


def shell(*declared: dict[str, Any]) -> dict[str, Any]:
    return {"type": "shell", "environment": {"type": "container_auto", "skills": [*declared]}}


@pytest_asyncio.fixture
async def server(bubblewrap: Bubblewrap, tmp_path: Path) -> AsyncIterator[InterpreterServer]:
    folder = tmp_path / "skills" / "letters"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: letters\ndescription: >\n  Writes\n  letters.\n---\nDear reader,\n")
    (tmp_path / "secret.txt").write_text("secret of the host")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(folder / "pipe")
    (tmp_path / "skills" / "linked").symlink_to(tmp_path)
    table = {"provider": "bubblewrap", "call_seconds": 20, "max_containers": 4, "disk": "4MiB"}
    backend = Scripted()
    tools = {"code_interpreter": {**table, "skills": str(tmp_path / "skills")}}
    async with antiphon(backend, tools=tools, api_keys="ada,bob") as url:
        async with openai_client(url) as client, openai_client(url, "bob") as other:
            yield InterpreterServer(client, other, backend)


def offered(server: InterpreterServer) -> str:
    return str(server.backend.received[0]["tools"][0]["function"]["description"])


async def test_inline_skill_is_read_and_run_in_the_shell(server: InterpreterServer) -> None:
    lines = ["cat /mnt/skills/plotter/SKILL.md", "python3 /mnt/skills/plotter/lib/go.py"]
    response = await server.respond(commands(*lines), tools=[shell(inline())])
    assert "- plotter: Draws plots. (/mnt/skills/plotter)" in offered(server)
    assert "Read on." in server.shown() and "went" in server.shown()
    assert [item.type for item in response.output] == ["shell_call", "shell_call_output", "message"]


async def test_skill_of_the_operator_is_read_by_code(server: InterpreterServer) -> None:
    tool = {"type": "code_interpreter", "container": {"type": "auto", "skills": [LETTERS]}}
    code = "import os; print(open('/mnt/skills/letters/SKILL.md').read(), os.listdir('/mnt/skills/letters'))"
    response = await server.respond(runs(code), tools=[tool])
    assert "- letters: Writes letters. (/mnt/skills/letters)" in offered(server)
    printed = logs(response.output[0])
    assert "Dear reader," in printed
    assert "['SKILL.md']" in printed  # neither the link nor the pipe


LETTERS = {"type": "skill_reference", "skill_id": "letters", "version": "latest"}


async def test_skill_cannot_be_changed_in_its_container(server: InterpreterServer) -> None:
    attempts = [
        "echo evil > /mnt/skills/plotter/SKILL.md",
        "rm -f /mnt/skills/plotter/SKILL.md",
        "touch /mnt/skills/plotter/new",
        "chmod u+w /mnt/skills/plotter/SKILL.md",
        "mkdir /mnt/skills/other",
        "grep -c Read /mnt/skills/plotter/SKILL.md",
    ]
    response = await server.respond(commands(*attempts), tools=[shell(inline())])
    codes = [entry.outcome.exit_code for entry in response.output[1].output]
    assert all(codes[:-1]) and codes[-1] == 0


async def test_later_turn_has_the_skills_that_it_declares_and_the_files_of_before(server: InterpreterServer) -> None:
    first = await server.respond(commands("echo kept > /mnt/data/a.txt"), tools=[shell(inline())])
    both = [shell(inline(), LETTERS)]
    lines = ["cat /mnt/data/a.txt", "ls /mnt/skills"]
    await server.respond(commands(*lines), tools=both, previous_response_id=first.id)
    assert "kept" in server.shown() and "letters" in server.shown() and "plotter" in server.shown()


async def test_archive_is_not_in_the_response(server: InterpreterServer) -> None:
    response = await server.respond(tools=[shell(inline())])
    stored = await server.client.responses.retrieve(response.id)
    for shown in (response, stored):
        (skill,) = shown.model_dump()["tools"][0]["environment"]["skills"]
        assert skill["name"] == "plotter" and not skill["source"].get("data")


async def test_container_is_created_with_skills(server: InterpreterServer) -> None:
    container = await server.client.containers.create(name="c", skills=[inline()])  # type: ignore[list-item]
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container.id}}
    await server.respond(commands("cat /mnt/skills/plotter/SKILL.md"), tools=[tool])
    assert "- plotter: Draws plots." in offered(server)
    assert "Read on." in server.shown()
    with pytest.raises(openai.NotFoundError):
        await server.other.containers.retrieve(container.id)


BAD = "tools[0].environment.skills[0]"


@pytest.mark.parametrize(
    ("skill", "param"),
    [
        ({**LETTERS, "skill_id": "nothing"}, f"{BAD}.skill_id"),
        ({**LETTERS, "skill_id": ".."}, f"{BAD}.skill_id"),
        ({**LETTERS, "skill_id": "../skills/letters"}, f"{BAD}.skill_id"),
        ({**LETTERS, "skill_id": "linked"}, f"{BAD}.skill_id"),
        ({**LETTERS, "version": "7"}, f"{BAD}.version"),
        (inline(b"no archive"), f"{BAD}.source.data"),
        ({"type": "inline", "name": "a"}, f"{BAD}.description"),
    ],
)
async def test_skill_that_cannot_be_used_is_refused(
    server: InterpreterServer, skill: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await server.respond(tools=[shell(skill)])
    assert refusal.value.param == param


async def test_skills_are_bounded_in_number(server: InterpreterServer) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await server.respond(tools=[shell(*[LETTERS] * 17)])
    assert refusal.value.param == "tools[0].environment.skills"
    with pytest.raises(openai.BadRequestError, match="must not contain the skill"):
        await server.respond(tools=[shell(LETTERS, LETTERS)])


@pytest.mark.parametrize(
    "data",
    [
        archive({"../SKILL.md": "x", "SKILL.md": "x"}),
        archive({"/etc/passwd": "x", "SKILL.md": "x"}),
        archive({"a/../../b": "x", "SKILL.md": "x"}),
        archive({"a\\b": "x", "SKILL.md": "x"}),
        archive({"a\nb": "x", "SKILL.md": "x"}),
        archive({"SKILL.md": "x", "SKILL.md/a": "x"}),
        archive(links={"link": "/etc/passwd"}),
        archive({"README.md": "x"}),
        archive({"a/SKILL.md": "x", "b/SKILL.md": "x"}),
        archive({"SKILL.md": "x", **{f"{n}.txt": "x" for n in range(100)}}),
        archive({"SKILL.md": "x", "zeros": bytes(9 * 1024 * 1024)}),  # 9 KiB as an archive
        archive()[:-10],
        b"",
    ],
)
def test_archive_that_is_no_skill_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_archive(data)


def test_archive_may_have_one_folder() -> None:
    data = archive({"plotter/SKILL.md": "x", "plotter/a/b.txt": "y", "__MACOSX/plotter/._SKILL.md": "z"})
    assert read_archive(data) == {"SKILL.md": b"x", "a/b.txt": b"y"}


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        (HEADING, ("plotter", "Draws plots.")),
        ('---\r\nname: "a b"\r\nother:\r\n  - name: c\r\n---\r\n', ("a b", "")),
        ("---\ndescription: |\n  One\n  two\nname: x\n---\n", ("x", "One two")),
        ("# No heading", ("", "")),
        ("", ("", "")),
    ],
)
def test_name_and_description_are_read_of_the_heading(text: str, heading: tuple[str, str]) -> None:
    assert read_heading(text) == heading


async def test_skills_of_requests_are_bounded_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "MAX_STORED_SKILLS", 2500)
    folder = SkillFolder(directory=tmp_path)
    found = [
        (await folder.resolve([InlineSkill.model_validate(inline(archive({"SKILL.md": str(n) * 1000})))], "skills"))[0]
        for n in range(4)
    ]
    there = [bool(read_skill_files([skill])) for skill in found]
    assert there[-2:] == [True, True] and sum(there) == 2


async def test_first_inline_skills_that_arrive_together_are_all_unpacked() -> None:
    declared = [[InlineSkill.model_validate(inline(archive({"SKILL.md": str(n)})))] for n in (0, 0, 1, 2, 3)]
    for _ in range(60):
        folder = SkillFolder()
        resolved = await asyncio.gather(*(folder.resolve(one, "skills") for one in declared))
        assert [[*read_skill_files(found).values()] for found in resolved] == [[b"0"], [b"0"], [b"1"], [b"2"], [b"3"]]
        folder.close()


async def test_skill_that_cannot_be_stored_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        await SkillFolder(directory=tmp_path).resolve([InlineSkill.model_validate(inline())], "skills")
    assert os.listdir(tmp_path) == []


async def test_unknown_field_of_a_skill_is_named(server: InterpreterServer) -> None:
    headers = {"authorization": "Bearer ada"}
    async with httpx.AsyncClient(base_url=str(server.client.base_url), headers=headers) as http:
        answer = await http.post("/containers", json={"name": "c", "skills": [{**LETTERS, "versio": "1"}]})
    assert answer.status_code == 400
    assert json.loads(answer.content)["error"]["param"] == "skills[0].versio"
