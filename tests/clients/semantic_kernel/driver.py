"""Semantic Kernel, by its agent for Responses."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, MODEL, NAME, WEATHER, WHO, play, scenario
from scenarios import weather as ask_weather
from semantic_kernel.agents import OpenAIResponsesAgent
from semantic_kernel.functions import kernel_function


class Person(BaseModel):
    name: str
    born: int


class Lab:
    """A plugin."""

    @kernel_function(name="weather", description="The weather of a place.")
    def weather(self, place: str) -> str:
        return ask_weather(place)


def agent(**options: Any) -> OpenAIResponsesAgent:
    return OpenAIResponsesAgent(ai_model_id=MODEL, client=AsyncOpenAI(max_retries=0), name="helper", **options)


async def streamed(agent: OpenAIResponsesAgent, prompt: str) -> list[str]:
    return [str(piece.message.content) async for piece in agent.invoke_stream(messages=prompt) if piece.message.content]


@scenario
async def text() -> Any:
    return {"text": str((await agent().get_response(messages=HELLO)).message.content)}


@scenario
async def stream() -> Any:
    pieces = await streamed(agent(), HELLO)
    return {"pieces": pieces, "text": "".join(pieces)}


@scenario
async def tools() -> Any:
    return {"text": str((await agent(plugins=[Lab()]).get_response(messages=WEATHER)).message.content)}


@scenario
async def tools_streamed() -> Any:
    return {"text": "".join(await streamed(agent(plugins=[Lab()]), WEATHER))}


@scenario
async def structured() -> Any:
    text = OpenAIResponsesAgent.configure_response_format(Person)
    response = await agent(text=text).get_response(messages=WHO)
    return Person.model_validate_json(str(response.message.content)).model_dump()


@scenario
async def turns() -> Any:
    """The server stores the conversation: the thread only has the last response id."""
    assistant = agent()
    first = await assistant.get_response(messages=NAME)
    return {"text": str((await assistant.get_response(messages=ASK_NAME, thread=first.thread)).message.content)}


play()
