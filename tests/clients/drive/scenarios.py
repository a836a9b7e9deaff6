"""
Scenarios by name for Python drivers; each prints the client's output as a line of JSON.

    python driver.py text stream

A driver runs in the client's own interpreter without this project, and finds this module by path.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
MODEL = os.environ["MODEL"]

# Input shared by all clients' scenarios.
HELLO = "Say hello."
NAME, ASK_NAME = "My name is Ada.", "What is my name?"
WEATHER = "How is the weather in Paris and in Oslo?"
WHO = "Who was Ada Lovelace?"
SUM = "What is six times seven?"
ADD = "What is one and two?"

_SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(play: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function, which may be async, as a scenario with its name."""
    _SCENARIOS[play.__name__] = play
    return play


def weather(place: str) -> str:
    """A function for the model to call."""
    return f"Sunny in {place}."


def play() -> None:
    """Play the scenarios named on the command line."""
    for name in sys.argv[1:]:
        try:
            shown = _SCENARIOS[name]()
            if inspect.isawaitable(shown):
                shown = asyncio.run(_awaited(shown))
        except Exception as error:
            shown = {
                "error": type(error).__name__,
                "message": str(error),
                "status": getattr(error, "status_code", None),
            }
        print(json.dumps(shown), flush=True)


async def _awaited(shown: Any) -> Any:
    return await shown
