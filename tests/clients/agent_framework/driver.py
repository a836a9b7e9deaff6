"""Microsoft Agent Framework, by its package for OpenAI."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, scenario, weather


class Person(BaseModel):
    name: str
    born: int


def agent(**options: Any) -> Agent:
    return Agent(OpenAIChatClient(model=MODEL), **options)


def usage(response: Any) -> list[int]:
    return [response.usage_details["input_token_count"], response.usage_details["output_token_count"]]


async def streamed(agent: Agent, prompt: str) -> tuple[list[str], Any]:
    stream = agent.run(prompt, stream=True)
    contents = [part async for update in stream for part in update.contents if part.type == "text"]
    pieces = [part.text for part in contents if part.merge_mode == "append" and part.text]
    return pieces, await stream.get_final_response()


@scenario
async def text() -> Any:
    response = await agent().run(HELLO)
    return {"text": response.text, "usage": usage(response)}


@scenario
async def stream() -> Any:
    pieces, response = await streamed(agent(), HELLO)
    return {"pieces": pieces, "text": response.text, "usage": usage(response)}


@scenario
async def tools() -> Any:
    return {"text": (await agent(tools=[weather]).run(WEATHER)).messages[-1].text}


@scenario
async def tools_streamed() -> Any:
    _, response = await streamed(agent(tools=[weather]), WEATHER)
    return {"text": response.messages[-1].text}


@scenario
async def structured() -> Any:
    response = await agent().run(WHO, options={"response_format": Person})
    return response.value.model_dump()


@scenario
async def turns() -> Any:
    """The server stores the conversation: the session only has the last response id."""
    assistant = agent()
    session = assistant.create_session()
    await assistant.run(NAME, session=session)
    return {"text": (await assistant.run(ASK_NAME, session=session)).text}


@scenario
async def thinking() -> Any:
    response = await agent().run(SUM, options={"reasoning": {"summary": "auto"}})
    thoughts = [
        part.text for message in response.messages for part in message.contents if part.type == "text_reasoning"
    ]
    return {"text": response.text, "reasoning": "".join(thoughts)}


play()
