"""`code_interpreter` and `shell` in responses, and the endpoints of containers: with OpenAI's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from app.errors import NotFound
from app.tools import ToolHost
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.containers import Containers
from app.tools.code_interpreter.tool import CodeInterpreter
from tests.responses.test_tool_loop import made
from tests.support import laws
from tests.support.build import delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.files.conftest import openai_client

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
OUTPUTS = "code_interpreter_call.outputs"


def runs(code: str) -> list[Any]:
    return made(("code_interpreter", {"code": code}))


def commands(*lines: str, **more: Any) -> list[Any]:
    return made(("shell", {"commands": [*lines], **more}))


def says(*pieces: str) -> list[Any]:
    return [*(delta(content=piece) for piece in pieces), finish("stop")]


@dataclass
class InterpreterServer:
    client: AsyncOpenAI
    other: AsyncOpenAI
    backend: Scripted

    async def respond(self, *scripts: list[Any], **options: Any) -> Any:
        self.backend.scripts = [*scripts, says("Done.")]
        wanted = {"model": "m", "input": "Go.", "tools": [AUTO], "include": [OUTPUTS], **options}
        return await self.client.responses.create(**wanted)

    def shown(self) -> Any:
        """The model's view of the last call."""
        return self.backend.received[-1]["messages"][-1]["content"]


@pytest_asyncio.fixture
async def server(bubblewrap: Bubblewrap, tmp_path: Path) -> AsyncIterator[InterpreterServer]:
    tools = {
        "code_interpreter": {"provider": "bubblewrap", "call_seconds": 20, "max_containers": 4, "disk": "4MiB"},
        "file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"},
    }
    backend = Scripted()
    async with (
        antiphon(backend, tools=tools, api_keys="ada,bob") as url,
        openai_client(url) as client,
        openai_client(url, "bob") as other,
    ):
        yield InterpreterServer(client, other, backend)


def logs(call: Any) -> str:
    return "".join(output.logs for output in call.outputs if output.type == "logs")


async def test_code_is_run_and_its_output_shown_to_the_model(server: InterpreterServer) -> None:
    response = await server.respond(runs("print('hello')\n6 * 7"))
    call, message = response.output
    assert (call.type, call.status, call.code) == ("code_interpreter_call", "completed", "print('hello')\n6 * 7")
    assert logs(call) == "hello\n42\n"
    assert server.shown() == "hello\n42\n"
    assert message.content[0].text == "Done."
    container = await server.client.containers.retrieve(call.container_id)
    assert (container.status, container.memory_limit) == ("running", "1g")


async def test_code_outputs_are_returned_only_if_included(server: InterpreterServer) -> None:
    response = await server.respond(runs("1 + 1"), include=[])
    assert response.output[0].outputs is None
    assert server.shown() == "2\n"


async def test_file_whose_name_is_not_utf_8_is_read_and_deleted(server: InterpreterServer) -> None:
    response = await server.respond(runs("open(b'/mnt/data/caf\\xe9.txt', 'w').write('content')"))
    container = response.output[0].container_id
    files = server.client.containers.files
    (file,) = (await files.list(container)).data
    assert file.path == "/mnt/data/caf\\xe9.txt"
    assert (await files.content.retrieve(file.id, container_id=container)).read() == b"content"
    await files.delete(file.id, container_id=container)
    assert (await files.list(container)).data == []


async def test_file_that_cannot_be_read_is_a_404(server: InterpreterServer) -> None:
    response = await server.respond(runs("import os; open('a', 'w').write('content'); os.chmod('a', 0)"))
    container = response.output[0].container_id
    (file,) = (await server.client.containers.files.list(container)).data
    with pytest.raises(openai.NotFoundError):
        await server.client.containers.files.content.retrieve(file.id, container_id=container)


async def test_code_state_is_kept_between_calls_and_turns(server: InterpreterServer) -> None:
    first = await server.respond(runs("x = 20"), runs("x += 1; x"))
    assert logs(first.output[1]) == "21\n"
    second = await server.respond(runs("x * 2"), previous_response_id=first.id)
    assert logs(second.output[0]) == "42\n"
    assert second.output[0].container_id == first.output[0].container_id
    stateless = await server.respond(
        runs("x * 3"), input=[item.to_dict() for item in first.output] + [{"role": "user", "content": "Again."}]
    )
    assert logs(stateless.output[0]) == "63\n"
    apart = await server.respond(runs("x"))
    assert "NameError" in logs(apart.output[0])
    assert apart.output[0].container_id != first.output[0].container_id


async def test_container_is_one_for_a_conversation_and_lists_its_calls(server: InterpreterServer) -> None:
    conversation = await server.client.conversations.create()
    first = await server.respond(runs("x = 20"), conversation=conversation.id)
    second = await server.respond(runs("x + 1"), conversation=conversation.id)
    assert logs(second.output[0]) == "21\n"
    assert second.output[0].container_id == first.output[0].container_id
    items = [item async for item in await server.client.conversations.items.list(conversation.id, order="asc")]
    calls = [item for item in items if item.type == "code_interpreter_call"]
    assert [call.code for call in calls] == ["x = 20", "x + 1"]
    assert server.backend.received[-1]["messages"][-1]["content"] == "21\n"


async def test_code_in_the_background_is_followed_from_the_middle_of_its_run(server: InterpreterServer) -> None:
    queued = await server.respond(runs("import time; time.sleep(0.3); print('gone')"), background=True)
    seen = 0
    async for event in await server.client.responses.retrieve(queued.id, stream=True):
        seen = event.sequence_number
        if event.type == "response.code_interpreter_call.interpreting":
            break
    rest = [
        event async for event in await server.client.responses.retrieve(queued.id, stream=True, starting_after=seen)
    ]
    assert [event.sequence_number for event in rest] == list(range(seen + 1, seen + 1 + len(rest)))
    assert rest[0].type == "response.code_interpreter_call.completed"
    ended = await server.client.responses.retrieve(queued.id)
    assert ended.status == "completed" and logs(ended.output[0]) == "gone\n"


async def test_code_of_a_cancelled_background_response_is_stopped(server: InterpreterServer) -> None:
    queued = await server.respond(runs("open('begun', 'w').close()\nimport time; time.sleep(600)"), background=True)
    async for event in await server.client.responses.retrieve(queued.id, stream=True):
        if event.type == "response.code_interpreter_call.interpreting":
            await server.client.responses.cancel(queued.id)
    ended = await server.client.responses.retrieve(queued.id)
    assert (ended.status, ended.output[0].status) == ("cancelled", "incomplete")
    follow = await server.respond(runs("6 * 7"), tools=[{**AUTO, "container": ended.output[0].container_id}])
    assert logs(follow.output[0]) == "42\n"


async def test_code_events_come_in_openais_order(server: InterpreterServer) -> None:
    stream = await server.respond(runs("1 + 1"), stream=True)
    events = [event.to_dict() async for event in stream]
    of_call = [event["type"].removeprefix("response.") for event in events if event.get("output_index") == 0]
    assert of_call[:2] == ["output_item.added", "code_interpreter_call.in_progress"]
    assert [type for type in of_call[2:] if type != "code_interpreter_call_code.delta"] == [
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    added = next(event for event in events if event["type"] == "response.output_item.added")
    assert added["item"]["container_id"].startswith("cntr_")
    laws.check(events)


async def test_code_that_raises_returns_the_error(server: InterpreterServer) -> None:
    response = await server.respond(runs("1 / 0"))
    assert response.output[0].status == "completed"
    assert "ZeroDivisionError" in logs(response.output[0])
    assert "ZeroDivisionError" in server.shown()


async def test_code_file_that_is_written_is_cited_and_can_be_downloaded(server: InterpreterServer) -> None:
    server.backend.scripts = [runs("open('sums.csv', 'w').write('a,b')"), says("See sums.csv", " 【900001", "】.")]
    response = await server.client.responses.create(model="m", input="Go.", tools=[AUTO])
    assert "【900001】 /mnt/data/sums.csv" in server.shown()
    call, message = response.output
    part = message.content[0]
    assert part.text == "See sums.csv."
    (cited,) = part.annotations
    assert (cited.type, cited.filename, cited.container_id) == (
        "container_file_citation",
        "sums.csv",
        call.container_id,
    )
    assert (cited.start_index, cited.end_index) == (12, 12)
    content = await server.client.containers.files.content.retrieve(cited.file_id, container_id=cited.container_id)
    assert content.read() == b"a,b"
    assert content.response.headers["content-disposition"].startswith("attachment")


async def test_code_figures_are_shown_as_images(server: InterpreterServer) -> None:
    tried = await asyncio.create_subprocess_exec("/usr/bin/python3", "-I", "-c", "import matplotlib")
    if await tried.wait():
        pytest.skip("the system's Python has no matplotlib (apt install python3-matplotlib)")
    response = await server.respond(runs("import matplotlib.pyplot as p\np.plot([1, 2])\np.show()\np.plot([2, 1])"))
    images = [output.url for output in response.output[0].outputs if output.type == "image"]
    assert len(images) == 2
    assert all(url.startswith("data:image/png;base64,iVBOR") for url in images)


async def test_code_image_that_is_saved_is_shown(server: InterpreterServer) -> None:
    code = "import base64\nopen('dot.gif', 'wb').write(base64.b64decode('R0lGODlhAQABAAAAACwAAAAAAQABAAA='))"
    response = await server.respond(runs(code))
    images = [output.url for output in response.output[0].outputs if output.type == "image"]
    assert images == ["data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="]


async def test_uploaded_files_are_mounted(server: InterpreterServer) -> None:
    file = await server.client.files.create(file=("in.txt", b"content"), purpose="user_data")
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [file.id]}}
    response = await server.respond(runs("open('/mnt/data/in.txt').read()"), tools=[tool])
    assert logs(response.output[0]) == "'content'\n"
    with pytest.raises(openai.NotFoundError) as foreign:
        await server.other.responses.create(model="m", input="Go.", tools=[tool])  # type: ignore[list-item]
    assert foreign.value.param == "tools[0].container.file_ids"


async def test_container_is_named_by_its_id(server: InterpreterServer) -> None:
    container = await server.client.containers.create(name="mine")
    tool: Any = {"type": "code_interpreter", "container": container.id}
    response = await server.respond(runs("1"), tools=[tool])
    assert response.output[0].container_id == container.id
    for client, id in ((server.other, container.id), (server.client, "cntr_unknown")):
        with pytest.raises(openai.NotFoundError) as error:
            await client.responses.create(model="m", input="Go.", tools=[{"type": "code_interpreter", "container": id}])
        assert error.value.param == "tools[0].container"


@pytest.mark.parametrize(
    ("container", "param"),
    [
        (None, "tools[0].container"),
        ({"type": "mine"}, "tools[0].container.type"),
        ({"type": "auto", "memory_limit": "2g"}, "tools[0].container.memory_limit"),
        ({"type": "auto", "memory_limit": "64g"}, "tools[0].container.memory_limit"),
        ({"type": "auto", "network_policy": {"type": "allowlist"}}, "tools[0].container.network_policy.type"),
    ],
)
async def test_code_interpreter_declaration_that_is_invalid_names_the_field(
    server: InterpreterServer, container: Any, param: str
) -> None:
    tool = {"type": "code_interpreter", **({"container": container} if container else {})}
    with pytest.raises(openai.BadRequestError) as error:
        await server.respond(runs("1"), tools=[tool])
    assert error.value.param == param


async def test_code_that_takes_too_long_is_stopped(bubblewrap: Bubblewrap) -> None:
    tools = {"code_interpreter": {"provider": "bubblewrap", "call_seconds": 3}}
    backend = Scripted(runs("open('a', 'w').close()\nwhile True: pass"), runs("import os; os.listdir()"), says("Done."))
    async with antiphon(backend, tools=tools) as url, openai_client(url) as client:
        response = await client.responses.create(model="m", input="Go.", tools=[AUTO], include=[OUTPUTS])  # type: ignore[list-item]
    first, second, _ = response.output
    assert first.status == "failed"
    assert "stopped after 3 seconds" in logs(first)
    assert logs(second) == "['a']\n"


async def test_code_of_a_cancelled_response_is_stopped(server: InterpreterServer) -> None:
    container = await server.client.containers.create(name="mine")
    tool = {"type": "code_interpreter", "container": container.id}
    stream = await server.respond(runs("open('a', 'w').close()\nwhile True: pass"), tools=[tool], stream=True)
    async for event in stream:
        if event.type == "response.code_interpreter_call.interpreting":
            break
    await stream.close()
    # The list waits for the call to end: it would take 20 seconds.
    async with asyncio.timeout(15):
        await server.client.containers.files.list(container.id)


async def test_exit_code_of_code_that_ends_its_process_is_reported(server: InterpreterServer) -> None:
    response = await server.respond(*(runs(f"import os; os._exit({code})") for code in (3, 4, 5)))
    calls = [item for item in response.output if item.type == "code_interpreter_call"]
    assert [call.outputs[0].logs for call in calls] == [
        f"The Python process ended (exit code {code}). Its variables are lost. The files are kept."
        for code in (3, 4, 5)
    ]


# The shell.


async def test_shell_commands_are_run_and_their_output_is_an_item(server: InterpreterServer) -> None:
    response = await server.respond(commands("echo one; echo two >&2; exit 3", "cat /mnt/data/none"), tools=[SHELL])
    call, output, message = response.output
    assert (call.type, call.status, call.environment.type) == ("shell_call", "completed", "container_reference")
    assert (output.type, output.call_id, output.status) == ("shell_call_output", call.call_id, "completed")
    first, second = output.output
    assert (first.stdout, first.stderr, first.outcome.exit_code) == ("one\n", "two\n", 3)
    assert (second.stdout, second.outcome.exit_code) == ("", 1)
    assert "No such file" in second.stderr
    assert message.content[0].text == "Done."
    assert '"exit_code": 3' in server.shown()


async def test_shell_output_is_streamed(server: InterpreterServer) -> None:
    stream = await server.respond(commands("echo hi"), tools=[SHELL], stream=True)
    events = [event.to_dict() async for event in stream]
    types = [event["type"].removeprefix("response.") for event in events]
    assert [type for type in types if type.startswith("shell_call")] == [
        "shell_call_command.added",
        "shell_call_command.delta",
        "shell_call_command.done",
        "shell_call_output_content.delta",
        "shell_call_output_content.done",
    ]
    assert types[-1] == "completed"
    laws.check(events)


async def test_shell_and_code_share_a_container_with_later_turns(server: InterpreterServer) -> None:
    first = await server.respond(commands("echo kept > note"), runs("open('note').read()"), tools=[SHELL, AUTO])
    assert logs(first.output[2]) == "'kept\\n'\n"
    second = await server.respond(commands("cat note"), tools=[SHELL], previous_response_id=first.id)
    assert second.output[1].output[0].stdout == "kept\n"


async def test_shell_command_has_a_timeout_of_its_own(server: InterpreterServer) -> None:
    response = await server.respond(commands("echo begun; sleep 60", timeout_ms=2000), tools=[SHELL])
    (entry,) = response.output[1].output
    assert (entry.stdout, entry.outcome.type) == ("begun\n", "timeout")


async def test_shell_of_the_client_is_not_run(server: InterpreterServer) -> None:
    response = await server.respond(commands("ls"), tools=[{"type": "shell", "environment": {"type": "local"}}])
    assert [item.type for item in response.output] == ["shell_call"]
    assert len(server.backend.received) == 1


# The endpoints.


async def test_containers_are_created_listed_and_deleted(server: InterpreterServer) -> None:
    expiry: Any = {"anchor": "last_active_at", "minutes": 5}
    first = await server.client.containers.create(name="first", expires_after=expiry)
    second = await server.client.containers.create(name="second")
    assert first.expires_after
    assert (first.object, first.name, first.expires_after.minutes) == ("container", "first", 5)
    assert [one.id async for one in server.client.containers.list(limit=1)] == [second.id, first.id]
    assert [one.name async for one in server.client.containers.list(order="asc")] == ["first", "second"]
    with pytest.raises(openai.BadRequestError, match=r"'after'.*cntr_unknown"):
        await server.client.containers.list(after="cntr_unknown")
    await server.client.containers.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await server.client.containers.retrieve(first.id)
    assert [one.id async for one in server.client.containers.list()] == [second.id]


async def test_container_files_are_added_listed_read_and_deleted(server: InterpreterServer) -> None:
    id = (await server.client.containers.create(name="mine")).id
    files = server.client.containers.files
    added = await files.create(id, file=("a.txt", b"content"))
    assert (added.object, added.path, added.bytes, added.source) == ("container.file", "/mnt/data/a.txt", 7, "user")
    upload = await server.client.files.create(file=("b.txt", b"uploaded"), purpose="user_data")
    copied = await files.create(id, file_id=upload.id)
    assert {one.path async for one in files.list(id)} == {"/mnt/data/a.txt", "/mnt/data/b.txt"}
    assert (await files.retrieve(added.id, container_id=id)).id == added.id
    assert (await files.content.retrieve(copied.id, container_id=id)).read() == b"uploaded"
    await files.delete(added.id, container_id=id)
    assert [one.id async for one in files.list(id)] == [copied.id]
    with pytest.raises(openai.NotFoundError):
        await files.content.retrieve(added.id, container_id=id)


async def test_container_file_that_does_not_fit_is_refused(server: InterpreterServer) -> None:
    id = (await server.client.containers.create(name="mine")).id
    with pytest.raises(openai.BadRequestError) as error:
        await server.client.containers.files.create(id, file=("large", bytes(6 * 1024 * 1024)))
    assert error.value.code == "container_full"
    assert [one async for one in server.client.containers.files.list(id)] == []


@pytest.mark.parametrize("name", ["../../etc/x", "a/b", "..\\x", "/etc/passwd"])
async def test_container_file_name_is_no_path(server: InterpreterServer, name: str) -> None:
    id = (await server.client.containers.create(name="mine")).id
    added = await server.client.containers.files.create(id, file=(name, b"x"))
    assert added.path.count("/") == 3


async def test_container_of_another_owner_is_not_found(server: InterpreterServer) -> None:
    id = (await server.client.containers.create(name="mine")).id
    file = (await server.client.containers.files.create(id, file=("a", b"x"))).id

    async def answers(client: AsyncOpenAI, container: str) -> list[str]:
        files = client.containers.files
        errors = []
        for request in (
            lambda: client.containers.retrieve(container),
            lambda: client.containers.delete(container),
            lambda: files.create(container, file=("b", b"y")),
            lambda: files.list(container),
            lambda: files.retrieve(file, container_id=container),
            lambda: files.content.retrieve(file, container_id=container),
            lambda: files.delete(file, container_id=container),
        ):
            with pytest.raises(openai.NotFoundError) as error:
                await request()
            errors.append(error.value.message.replace(container, "ID"))
        return errors

    assert await answers(server.other, id) == await answers(server.client, "cntr_unknown")
    assert [one async for one in server.other.containers.list()] == []
    assert (await server.client.containers.retrieve(id)).id == id


async def test_containers_beyond_the_limit_keep_their_files(server: InterpreterServer) -> None:
    first = await server.respond(runs("x = 1; open('kept', 'w').write('content')"))
    for _ in range(3):  # of four, a key may have three
        await server.respond(runs("2"))
    again = await server.respond(runs("open('kept').read()"), previous_response_id=first.id)
    assert logs(again.output[0]) == "'content'\n"
    assert server.shown().startswith("The Python process was restarted. The variables of earlier calls are lost")
    assert again.output[0].container_id == first.output[0].container_id


async def test_container_that_is_idle_expires_with_its_processes(bubblewrap: Bubblewrap) -> None:
    now = 1000.0
    containers = Containers(bubblewrap, clock=lambda: now)
    container = await containers.create("ada")
    assert await containers.files(container.owner, container.id) == []
    sandbox = container.sandbox
    assert sandbox
    now += 19 * 60
    assert await containers.get("ada", container.id) is container
    now += 60
    with pytest.raises(NotFound):
        await containers.get("ada", container.id)
    await containers.aclose()
    assert not sandbox.alive


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "provider"),
        ({"provider": "docker"}, "provider"),
        ({"provider": "bubblewrap", "python": "/opt/python"}, "python"),
        ({"provider": "bubblewrap", "python": "/usr/bin/no-python"}, "/usr/bin/no-python not found"),
    ],
)
def test_code_interpreter_table_that_is_invalid_is_refused(
    bubblewrap: Bubblewrap, table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CodeInterpreter.from_settings(table, ToolHost())


def test_code_interpreter_without_bubblewrap_explains_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(ValueError, match="apt install bubblewrap"):
        CodeInterpreter.from_settings({"provider": "bubblewrap"}, ToolHost())


def test_bubblewrap_that_fails_is_reported(bubblewrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: "/usr/bin/false")
    with pytest.raises(ValueError, match="user namespaces"):
        CodeInterpreter.from_settings({"provider": "bubblewrap"}, ToolHost())
