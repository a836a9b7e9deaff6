"""
What every driver in Python has: scenarios by name, and what a client shows of each as one line of JSON.

    python driver.py text stream

A driver is run by the interpreter of its client, which knows nothing of this project: it finds this module by its path.
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

# What is said in the scenarios that all clients have.
HELLO = "Say hello."
NAME, ASK_NAME = "My name is Ada.", "What is my name?"
WEATHER = "How is the weather in Paris and in Oslo?"
WHO = "Who was Ada Lovelace?"
SUM = "What is six times seven?"
ADD = "What is one and two?"

_SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(play: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function, which may be asynchronous, a scenario of that name."""
    _SCENARIOS[play.__name__] = play
    return play


def weather(place: str) -> str:
    """The function that a model may call."""
    return f"Sunny in {place}."


def play() -> None:
    """Play the scenarios that are named on the command line."""
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
