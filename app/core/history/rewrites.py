"""Items that a model is told in other words: those for which chat has none, and those that come twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from app.core.history.turns import parts_of
from app.core.request.content import label
from app.core.types.request import CreateResponse, Item, ReasoningOptions, is_uncalled


def drop_repeated_prompt(said: Sequence[Item], new: Sequence[Item], warnings: list[str]) -> list[Item]:
    """
    Return the new items without what was asked last, if it stands before the result of a tool once more.

    Semantic Kernel sends it so. Chat wants results right behind their calls, and so the model would be asked again.
    """
    asked = next((item for item in reversed(said) if _is_question(item)), None)
    last = max((position for position, item in enumerate(new) if item["type"].endswith("_output")), default=0)
    if asked is None or not last:
        return [*new]
    words = parts_of(asked.get("content"), "user")
    again = [_is_question(item) and parts_of(item.get("content"), "user") == words for item in new[:last]]
    if any(again):
        warnings.append("What was asked last came once more with the results of tools, and is not asked twice.")
    return [*(item for item, repeated in zip(new, again, strict=False) if not repeated), *new[last:]]


def _is_question(item: Item) -> bool:
    return bool(item["type"] == "message" and item["role"] == "user")


# What is told as an item of an extension is passed over by all who do not know it.
_UPDATE = "openai:configuration_update"


def apply_config_updates(request: CreateResponse, told: Iterable[Item]) -> CreateResponse:
    """Return the request with the effort that the last item of its conversation to update it says."""
    updates = [(item.get("reasoning") or {}).get("effort") for item in told if item["type"] == _UPDATE]
    effort = next(filter(None, reversed(updates)), None)
    if effort is None:
        return request
    reasoning = request.reasoning or ReasoningOptions()
    return request.model_copy(update={"reasoning": reasoning.model_copy(update={"effort": effort})})


# As OpenAI seals what agents say to each other; where another server wrote it, it is in the open.
_SEALED = re.compile(r"gAAAAA[\w-]{80,}={0,2}")


def rewrite_items(items: Iterable[Item], warnings: list[str]) -> list[Item]:
    """Return items as a model is told of them: what an agent says to it, or a tool unasked, is said by a user."""
    return [tell(item, warnings) if (tell := _TOLD.get(item["type"])) else item for item in items]


def _from_agent(item: Item, warnings: list[str]) -> Item:
    content = []
    for part in parts_of(item.get("content"), "user"):
        text = part.get("encrypted_content")
        if part["type"] != "encrypted_content" or not isinstance(text, str):
            content.append(part)
        elif _SEALED.fullmatch(text):
            warnings.append("An agent_message that OpenAI has sealed cannot be read, so that was left out.")
        else:
            content.append({"type": "input_text", "text": text})
    return {"type": "message", "role": "user", "content": content}


def _from_tool(item: Item, warnings: list[str]) -> Item:
    if not is_uncalled(item):
        return item
    about = {"type": "input_text", "text": f"The tool {label(item['name'])} says, without having been called:"}
    return {"type": "message", "role": "user", "content": [about, *parts_of(item["output"], "user")]}


_TOLD: dict[str, Callable[[Item, list[str]], Item]] = {
    "agent_message": _from_agent,
    "function_call_output": _from_tool,
    "configuration_update": lambda item, warnings: {**item, "type": _UPDATE},
}
