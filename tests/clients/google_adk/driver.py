"""Google's Agent Development Kit, which uses LiteLLM for other vendors' models."""

from __future__ import annotations

from typing import Any

import litellm  # noqa: F401  # which it imports late, so that it is imported once for all runs
from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, URL, WEATHER, play, scenario, weather


class Talk:
    """A session with an agent."""

    def __init__(self, **options: Any) -> None:
        model = LiteLlm(model=f"openai/responses/{MODEL}", api_base=URL, api_key=KEY, num_retries=0)
        self._runner = InMemoryRunner(agent=LlmAgent(name="helper", model=model, **options), app_name="lab")
        self._session: Any = None

    async def say(self, text: str) -> str:
        """Return the last text."""
        if self._session is None:
            self._session = await self._runner.session_service.create_session(app_name="lab", user_id="ada")
        last = ""
        async for event in self._runner.run_async(
            user_id="ada",
            session_id=self._session.id,
            new_message=types.UserContent(parts=[types.Part(text=text)]),
        ):
            if event.error_message:
                raise RuntimeError(event.error_message)
            text_of_event = "".join(part.text or "" for part in event.content.parts) if event.content else ""
            last = text_of_event or last
        return last


@scenario
async def text() -> Any:
    return {"text": await Talk().say(HELLO)}


@scenario
async def tools() -> Any:
    return {"text": await Talk(tools=[weather]).say(WEATHER)}


@scenario
async def turns() -> Any:
    talk = Talk()
    await talk.say(NAME)
    return {"text": await talk.say(ASK_NAME)}


play()
