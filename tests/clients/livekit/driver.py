"""LiveKit's plugin for the Responses API over WebSocket: an interrupted turn and two complete turns."""

from __future__ import annotations

from typing import Any

from livekit.agents import llm, utils
from livekit.plugins.openai import responses
from scenarios import KEY, MODEL, URL, play, scenario


def asking(text: str) -> llm.ChatContext:
    context = llm.ChatContext.empty()
    context.add_message(role="user", content=text)
    return context


async def answer_to(service: responses.LLM, text: str) -> str:
    async with service.chat(chat_ctx=asking(text)) as stream:
        return "".join([chunk.delta.content or "" async for chunk in stream if chunk.delta])


@scenario
async def interrupted() -> Any:
    """Leave the first turn after its first words, and take two more to their end."""
    async with utils.http_context.open():
        service = responses.LLM(model=MODEL, api_key=KEY, base_url=f"{URL}/responses")
        async with service.chat(chat_ctx=asking("one")) as stream:
            async for chunk in stream:
                if chunk.delta and chunk.delta.content:
                    first = chunk.delta.content
                    break
        turns = [await answer_to(service, text) for text in ("two", "three")]
        await service.aclose()
    return {"turns": [first, *turns], "errors": []}


play()
