"""Inspect, by its provider for OpenAI."""

from __future__ import annotations

from typing import Any

from inspect_ai.model import ChatMessageUser, ContentReasoning, GenerateConfig, ResponseSchema, get_model
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, scenario
from scenarios import weather as ask_weather
from tenacity import RetryError


class Person(BaseModel):
    name: str
    born: int


@tool
def weather() -> Tool:
    async def execute(place: str) -> str:
        """
        The weather of a place.

        Args:
            place: The place.
        """
        return ask_weather(place)

    return execute


def model(**config: Any) -> Any:
    # Unless it is told, Inspect asks the model first whether it has summaries of its reasoning.
    options = GenerateConfig(**{"max_retries": 0, "reasoning_summary": "none", **config})
    return get_model(f"openai/{MODEL}", base_url=URL, api_key=KEY, responses_api=True, config=options)


@scenario
async def text() -> Any:
    try:
        output = await model().generate(HELLO)
    except RetryError as error:  # has no message
        raise error.last_attempt.exception() from None
    if output.stop_reason == "model_length":
        return {"text": output.completion, "stop": output.stop_reason}
    return {"text": output.completion, "usage": [output.usage.input_tokens, output.usage.output_tokens]}


@scenario
async def tools() -> Any:
    _, output = await model().generate_loop(WEATHER, tools=[weather()])
    return {"text": output.completion}


@scenario
async def structured() -> Any:
    schema = ResponseSchema(name="person", json_schema=json_schema(Person), strict=True)
    output = await model(response_schema=schema).generate(WHO)
    return Person.model_validate_json(output.completion).model_dump()


@scenario
async def turns() -> Any:
    chat_model = model()
    first = await chat_model.generate([ChatMessageUser(content=NAME)])
    messages = [ChatMessageUser(content=NAME), first.message, ChatMessageUser(content=ASK_NAME)]
    return {"text": (await chat_model.generate(messages)).completion}


@scenario
async def thinking() -> Any:
    output = await model(reasoning_summary="auto").generate(SUM)
    parts = output.message.content if isinstance(output.message.content, list) else []
    thoughts = [part.summary or part.reasoning for part in parts if isinstance(part, ContentReasoning)]
    return {"text": output.completion, "reasoning": "".join(thoughts)}


play()
