"""llm, as a library; its program is run by the test itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, scenario, weather

# Unknown models are declared in a file in its directory.
USER = Path.cwd() / "llm"
USER.mkdir(exist_ok=True)
os.environ["LLM_USER_PATH"] = str(USER)
(USER / "extra-openai-models.yaml").write_text(f"""
- model_id: lab
  model_name: {MODEL}
  api_base: {URL}
  api_key_name: lab
  responses: true
  reasoning: true
  supports_tools: true
  supports_schema: true
""")

import llm  # noqa: E402  # it reads the file

model = llm.get_model("lab")
model.key = KEY


class Person(BaseModel):
    name: str
    born: int


def usage(response: Any) -> list[int]:
    usage = response.usage()
    return [usage.input, usage.output]


def thoughts(response: Any) -> str:
    return "".join(event.chunk for event in response.stream_events() if event.type == "reasoning")


def ask(*prompts: Any, **options: Any) -> Any:
    return model.prompt(*prompts, stream=False, **options)


@scenario
def text() -> Any:
    response = ask(HELLO)
    return {"text": response.text(), "usage": usage(response)}


@scenario
def stream() -> Any:
    response = model.prompt(HELLO)
    pieces = list(response)
    return {"pieces": pieces, "text": response.text(), "usage": usage(response)}


@scenario
def tools() -> Any:
    return {"text": list(model.chain(WEATHER, tools=[weather], stream=False).responses())[-1].text()}


@scenario
def tools_streamed() -> Any:
    return {"text": list(model.chain(WEATHER, tools=[weather]).responses())[-1].text()}


@scenario
def structured() -> Any:
    return Person.model_validate_json(ask(WHO, schema=Person).text()).model_dump()


@scenario
def structured_streamed() -> Any:
    return Person.model_validate_json(model.prompt(WHO, schema=Person).text()).model_dump()


@scenario
def turns_replayed() -> Any:
    conversation = model.conversation()
    conversation.prompt(NAME).text()
    return {"text": conversation.prompt(ASK_NAME).text()}


@scenario
def thinking() -> Any:
    response = ask(SUM)
    return {"reasoning": thoughts(response), "text": response.text()}


@scenario
def thinking_streamed() -> Any:
    response = model.prompt(SUM)
    return {"reasoning": thoughts(response), "text": response.text()}


play()
