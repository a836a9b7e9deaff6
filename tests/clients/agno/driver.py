"""Agno, by its models for OpenAI's API and for the specification's."""

from __future__ import annotations

import os
from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAIResponses, OpenResponses
from agno.run.base import RunStatus
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, URL, WEATHER, WHO, play, scenario, weather

os.environ["AGNO_TELEMETRY"] = "false"
MODELS = {"openai": OpenAIResponses, "open-responses": OpenResponses}


class Person(BaseModel):
    name: str
    born: int


def agent(**options: Any) -> Agent:
    model = MODELS[os.environ["KIND"]](id=MODEL, base_url=URL, api_key=KEY, max_retries=0)
    return Agent(model=model, telemetry=False, **options)


def ended(run: Any) -> Any:
    """Return a run's result; errors are in its content."""
    if run.status == RunStatus.error:
        raise RuntimeError(run.content)
    return run


def usage(run: Any) -> list[int]:
    return [run.metrics.input_tokens, run.metrics.output_tokens]


def streamed(agent: Agent, prompt: str) -> tuple[list[str], Any]:
    pieces: list[str] = []
    for event in agent.run(prompt, stream=True, stream_events=True):
        if event.event == "RunError":
            raise RuntimeError(event.content)
        if event.event == "RunContent" and event.content:
            pieces.append(event.content)
    return pieces, event


@scenario
def text() -> Any:
    run = ended(agent().run(HELLO))
    return {"text": run.content, "usage": usage(run)}


@scenario
def stream() -> Any:
    pieces, last = streamed(agent(), HELLO)
    return {"pieces": pieces, "text": last.content, "usage": usage(last)}


@scenario
def tools() -> Any:
    return {"text": ended(agent(tools=[weather]).run(WEATHER)).content}


@scenario
def tools_streamed() -> Any:
    pieces, _ = streamed(agent(tools=[weather]), WEATHER)
    return {"text": "".join(pieces)}


@scenario
def structured() -> Any:
    return ended(agent(output_schema=Person).run(WHO)).content.model_dump()


@scenario
def turns() -> Any:
    from agno.db.in_memory import InMemoryDb

    assistant = agent(db=InMemoryDb(), add_history_to_context=True)
    ended(assistant.run(NAME, session_id="s"))
    return {"text": ended(assistant.run(ASK_NAME, session_id="s")).content}


play()
