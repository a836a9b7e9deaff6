"""Haystack, by its generator for Responses."""

from __future__ import annotations

from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, scenario, weather


class Person(BaseModel):
    name: str
    born: int


def generator(**options: Any) -> OpenAIResponsesChatGenerator:
    return OpenAIResponsesChatGenerator(
        model=MODEL, api_base_url=URL, api_key=Secret.from_token(KEY), max_retries=0, generation_kwargs=options
    )


def ask(prompt: str, **options: Any) -> ChatMessage:
    return generator(**options).run([ChatMessage.from_user(prompt)])["replies"][0]


def streamed(prompt: str, **options: Any) -> tuple[list[str], ChatMessage]:
    pieces: list[str] = []

    def on_chunk(chunk: Any) -> None:
        if chunk.content:
            pieces.append(chunk.content)

    replies = generator(**options).run([ChatMessage.from_user(prompt)], streaming_callback=on_chunk)["replies"]
    return pieces, replies[0]


def usage(message: ChatMessage) -> list[int]:
    return [message.meta["usage"]["input_tokens"], message.meta["usage"]["output_tokens"]]


@scenario
def text() -> Any:
    message = ask(HELLO)
    return {"text": message.text, "usage": usage(message)}


@scenario
def stream() -> Any:
    pieces, message = streamed(HELLO)
    return {"pieces": pieces, "text": message.text, "usage": usage(message)}


def worked(**options: Any) -> Any:
    tool = create_tool_from_function(weather, name="weather", description="The weather of a place.")
    agent = Agent(chat_generator=generator(), tools=[tool], **options)
    return {"text": agent.run(messages=[ChatMessage.from_user(WEATHER)])["last_message"].text}


@scenario
def tools() -> Any:
    return worked()


@scenario
def tools_streamed() -> Any:
    return worked(streaming_callback=lambda chunk: None)


@scenario
def structured() -> Any:
    return Person.model_validate_json(ask(WHO, text_format=Person).text or "").model_dump()


@scenario
def turns() -> Any:
    first = ask(NAME)
    return {"text": ask(ASK_NAME, previous_response_id=first.meta["id"]).text}


@scenario
def thinking() -> Any:
    message = ask(SUM, reasoning={"summary": "auto"})
    return {"text": message.text, "reasoning": message.reasoning.reasoning_text if message.reasoning else ""}


play()
