"""Instructor, by its mode for Responses."""

from __future__ import annotations

from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel
from scenarios import MODEL, WHO, play, scenario


class Person(BaseModel):
    name: str
    born: int


def client() -> Any:
    return instructor.from_openai(OpenAI(max_retries=0), mode=instructor.Mode.RESPONSES_TOOLS)


def asking() -> dict[str, Any]:
    return {"model": MODEL, "input": WHO, "response_model": Person, "max_retries": 1}


@scenario
def structured_by_a_function() -> Any:
    return client().responses.create(**asking()).model_dump()


@scenario
def structured_by_a_function_streamed() -> Any:
    return list(client().responses.create_partial(**asking()))[-1].model_dump()


play()
