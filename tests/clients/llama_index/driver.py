"""LlamaIndex, by its package for OpenAI."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, scenario, weather


class Person(BaseModel):
    """A person."""

    name: str
    born: int


tool = FunctionTool.from_defaults(weather, name="weather")


def model(**options: Any) -> OpenAIResponses:
    # Unknown models need an explicit context window.
    return OpenAIResponses(model=MODEL, api_base=URL, api_key=KEY, context_window=32_000, **options)


def usage(response: Any) -> list[int]:
    usage = response.additional_kwargs["usage"]
    return [usage.input_tokens, usage.output_tokens]


def thoughts(response: Any) -> str:
    return "".join(block.content for block in response.message.blocks if isinstance(block, ThinkingBlock))


def last(stream: Any) -> Any:
    *_, response = stream
    return response


def worked(ask: Any) -> Any:
    """Run requested tools until the final answer."""
    llm = model()
    history = [ChatMessage(role="user", content=WEATHER)]
    while True:
        response = ask(llm, history)
        history.append(response.message)
        calls = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
        if not calls:
            return response
        for call in calls:
            result = tool.call(**call.tool_kwargs)
            kwargs = {"tool_call_id": call.tool_id}
            history.append(ChatMessage(role="tool", content=result.content, additional_kwargs=kwargs))


def given(history: list[ChatMessage]) -> dict[str, Any]:
    return {"tools": [tool], "chat_history": history, "allow_parallel_tool_calls": True}


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


@scenario
def text() -> Any:
    response = model().chat([user(HELLO)])
    return {"text": response.message.content, "usage": usage(response)}


@scenario
def stream() -> Any:
    chunks = list(model().stream_chat([user(HELLO)]))
    pieces = [chunk.delta for chunk in chunks if chunk.delta]
    return {"pieces": pieces, "text": chunks[-1].message.content, "usage": usage(chunks[-1])}


@scenario
def tools() -> Any:
    return {"text": worked(lambda llm, history: llm.chat_with_tools(**given(history))).message.content}


@scenario
def tools_streamed() -> Any:
    return {"text": worked(lambda llm, history: last(llm.stream_chat_with_tools(**given(history)))).message.content}


@scenario
def structured() -> Any:
    return model().structured_predict(Person, PromptTemplate(WHO)).model_dump()


@scenario
def turns() -> Any:
    llm = model(track_previous_responses=True)
    llm.chat([user(NAME)])
    return {"text": llm.chat([user(ASK_NAME)]).message.content}


@scenario
def turns_replayed() -> Any:
    first = model().chat([user(NAME)])
    return {"text": model().chat([user(NAME), first.message, user(ASK_NAME)]).message.content}


@scenario
def thinking() -> Any:
    response = model().chat([user(SUM)])
    return {"text": response.message.content, "reasoning": thoughts(response)}


@scenario
def thinking_streamed() -> Any:
    response = last(model().stream_chat([user(SUM)]))
    return {"text": response.message.content, "reasoning": thoughts(response)}


play()
