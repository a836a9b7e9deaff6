"""Strands Agents, by its model for Responses."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, scenario
from scenarios import weather as ask_weather
from strands import Agent, tool
from strands.models.openai_responses import OpenAIResponsesModel


class Person(BaseModel):
    """A person."""

    name: str
    born: int


@tool
def weather(place: str) -> str:
    """The weather of a place."""
    return ask_weather(place)


def agent(*, params: dict[str, Any] | None = None, **options: Any) -> Agent:
    client = {"base_url": URL, "api_key": KEY, "max_retries": 0}
    model = OpenAIResponsesModel(client_args=client, model_id=MODEL, params=params or {})
    return Agent(model=model, callback_handler=None, retry_strategy=None, **options)


def usage(result: Any) -> list[int]:
    used = result.metrics.accumulated_usage
    return [used["inputTokens"], used["outputTokens"]]


def shown(result: Any) -> str:
    return str(result).strip()


@scenario
def text() -> Any:
    result = agent()(HELLO)
    return {"text": shown(result), "usage": usage(result)}


@scenario
async def stream() -> Any:
    pieces, result = [], None
    async for event in agent().stream_async(HELLO):
        if event.get("data"):
            pieces.append(event["data"])
        result = event.get("result", result)
    return {"pieces": pieces, "text": shown(result), "usage": usage(result)}


@scenario
def tools() -> Any:
    return {"text": shown(agent(tools=[weather])(WEATHER))}


@scenario
def structured() -> Any:
    return agent()(WHO, structured_output_model=Person).structured_output.model_dump()


@scenario
def turns() -> Any:
    assistant = agent()
    assistant(NAME)
    return {"text": shown(assistant(ASK_NAME))}


@scenario
def thinking() -> Any:
    assistant = agent(params={"reasoning": {"summary": "auto"}})
    result = assistant(SUM)
    thoughts = [
        part["reasoningContent"]["reasoningText"]["text"]
        for part in result.message["content"]
        if "reasoningContent" in part
    ]
    return {"text": shown(result), "reasoning": "".join(thoughts)}


play()
