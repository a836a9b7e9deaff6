"""Laws for every response with hosted tools, for any calls and any interruption."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from app.backends.profiles import load_profile, profile_names
from app.core.request import to_chat
from app.core.request.model_request import ModelRequest
from app.core.stream.event_batch import EventBatch
from app.core.types.request import CreateResponse, Event
from app.errors import APIError, BackendError
from app.responses import Caller, GenerationOptions, Responses
from app.stores.memory import MemoryStore
from app.tools import ToolHost, ToolLimits
from app.tools.demo import DemoTool
from tests.support import laws
from tests.support.build import call, delta, finish, responses_on
from tests.support.deliveries import SlowWriter
from tests.support.hosted_lab import LabTool, ScriptedTool
from tests.support.scripted import Scripted

TOOLS = [
    {"type": "mcp", "server_label": "lab"},
    {"type": "mcp", "server_label": "demo"},
    {"type": "function", "name": "mine"},
    {"type": "shell"},
]

# Possible calls and arguments.
CALLS = [
    ("lab__echo", '{"text": "a"}'),
    ("lab__echo", '{"text": "b"}'),
    ("lab__fail", "{}"),
    ("lab__crash", "{}"),
    ("lab__image", ""),
    ("lab__ask", "{}"),
    ("lab__wait", "{}"),
    ("lab__echo", "[1]"),
    ("demo__add", '{"a": 1, "b": 2}'),
    ("demo__send", '{"text": "x"}'),
    ("web_search", '{"query": "x"}'),
    ("file_search", '{"queries": ["x"]}'),
    ("code_interpreter", '{"code": "1 + 1"}'),
    ("image_generation", '{"prompt": "x"}'),
    ("mine", "{}"),
    ("shell", '{"commands": ["ls"]}'),
    ("nobody", "{}"),
]
_calls = st.lists(st.sampled_from(CALLS), max_size=4)
_words = st.sampled_from(["", "Well."])
_endings = st.sampled_from(["tool_calls"] * 6 + ["length", "content_filter", "broken", "refused"])


@dataclass
class Answer:
    """A model answer."""

    thought: str
    text: str
    calls: list[tuple[str, str]]
    ending: str

    def script(self) -> list[Any]:
        if self.ending == "refused":
            return [BackendError("No.", status=503)]
        chunks: list[Any] = [delta(reasoning_content=self.thought)] if self.thought else []
        chunks += [delta(content=self.text)] if self.text else []
        chunks += [call(index, f"c{index}", name, written) for index, (name, written) in enumerate(self.calls)]
        if self.ending == "broken":
            return [*chunks, BackendError("It broke.")]
        counts = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
        return [*chunks, finish(self.ending), {"choices": [], "usage": counts}]


_answers = st.builds(Answer, _words, _words, _calls, _endings)

_TWO_ENDED_AND_ONE_WAITS = Answer("", "", [CALLS[0], CALLS[0], ("lab__wait", "{}")], "tool_calls")


@settings(max_examples=200)
@given(
    rounds=st.lists(_answers, min_size=1, max_size=5),
    stop=st.one_of(st.none(), st.integers(0, 60)),
    error=st.booleans(),
    parallel=st.booleans(),
    most=st.one_of(st.none(), st.integers(1, 4)),
    framework=st.booleans(),
)
@example(rounds=[_TWO_ENDED_AND_ONE_WAITS], stop=17, error=True, parallel=True, most=None, framework=True)
def test_tool_loop_with_any_calls_and_stops_keeps_its_laws(
    rounds: list[Answer], stop: int | None, error: bool, parallel: bool, most: int | None, framework: bool
) -> None:
    asyncio.run(_play(rounds, stop, error, parallel, most, framework))


async def _play(
    rounds: list[Answer], stop: int | None, error: bool, parallel: bool, most: int | None, framework: bool
) -> None:
    lab = ScriptedTool.reset()
    if stop is None:
        lab.gate.set()  # otherwise a waiting call waits until it is stopped
    backend = Scripted(*(answer.script() for answer in rounds), [delta(content="Done."), finish("stop")])
    tools = {"lab": LabTool(), "demo": DemoTool.from_settings({}, ToolHost())}
    options = GenerationOptions(tool_limits=ToolLimits(max_rounds=4))
    responses = responses_on(backend, MemoryStore(ttl=60), options, tools=tools)
    request = CreateResponse.model_validate(
        {
            "model": "m",
            "input": "Hi",
            "tools": TOOLS,
            "parallel_tool_calls": parallel,
            "max_tool_calls": most,
            "include": ["antiphon:events"] if framework else [],
        }
    )
    run = await responses.create(request, Caller())
    events: list[Event] = []
    writer = SlowWriter()
    batches = writer.batches(partial(run.generate, open_after=0.0))
    async with contextlib.aclosing(batches) as stream, asyncio.timeout(60):
        try:
            while stop is None or len(events) <= stop:
                batch = await _next(stream, lab)
                if batch is None:
                    break
                events += batch.events()
        except APIError:
            assert rounds[0].ending == "refused"
            assert not events
            return
    events += [event for batch in writer.waiting for event in batch.events()]
    events += (await run.stop(APIError("The server stops.") if error else None)).events()
    _check(events, lab, backend, rounds, most, framework)
    await _check_replay(responses, events[-1]["response"])


async def _next(stream: Any, lab: ScriptedTool) -> EventBatch | None:
    """Return the next events; None at the end, and if a call waits forever."""
    following = asyncio.ensure_future(anext(stream, None))
    waiting = asyncio.ensure_future(lab.started.wait())
    await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if following.done() or lab.gate.is_set():
        return await following  # type: ignore[no-any-return]
    following.cancel()
    await asyncio.wait({following})
    return None


def _check(
    events: list[Event], lab: ScriptedTool, backend: Scripted, rounds: list[Answer], most: int | None, framework: bool
) -> None:
    laws.check(events)
    final = events[-1]["response"]
    ours = [event for event in events if event["type"].startswith("antiphon:")]
    assert framework or not ours
    assert (lab.opened, lab.running, backend.opened) == (0, 0, 0)
    hosted = [item for item in final["output"] if item["type"] in ("mcp_call", "web_search_call", "file_search_call")]
    assert most is None or len(hosted) <= most
    assert not any(item["type"] == "function_call" and "__" in item["name"] for item in final["output"])
    used_rounds = rounds[: len(backend.received)]
    if final["status"] in ("completed", "incomplete") and len(used_rounds) == len(backend.received):
        whole = {
            "input_tokens": 10 * len(used_rounds),
            "output_tokens": 3 * len(used_rounds),
            "total_tokens": 13 * len(used_rounds),
        }
        stopped = final["incomplete_details"] and final["incomplete_details"]["reason"] == "cancelled"
        assert stopped or {name: final["usage"][name] for name in whole} == whole
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    for event in events:
        if not event["type"].startswith("antiphon:"):
            model: Any = laws.OPENAI_EVENTS.get(event["type"], ResponseStreamEvent)
            state.handle_event(construct_type_unchecked(value=event, type_=model))


async def _check_replay(responses: Responses, response: dict[str, Any]) -> None:
    """Every backend can be asked to go on, by the stored turn and by its items alone; none is dropped."""
    turn = await responses.store.all(f"anonymous:{response['id'][-24:]}")
    (record,) = turn.values()
    stored = json.loads(record)
    assert (await responses.stored.retrieve(response["id"], Caller()))["output"] == response["output"]
    items = [*stored["input"], *response["output"], {"type": "message", "role": "user", "content": "And?"}]
    request = CreateResponse.model_validate({"model": "m", "input": "And?", "tools": []})
    for name in profile_names():
        for upstream in (stored["upstream"], {}):
            chat = to_chat(ModelRequest(request, items, "m", upstream=upstream), load_profile(name))
            messages = chat.body["messages"]
            made = [one["id"] for message in messages for one in message.get("tool_calls", [])]
            answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
            assert answered == made, name
            expected = [item for item in response["output"] if item["type"].endswith(("_call", "_request"))]
            assert len(made) == len(expected), name
