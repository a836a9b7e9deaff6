"""The models that a server lists, and the names that it accepts for them."""

from __future__ import annotations

from app.core.json_values import json_list, json_text
from app.core.types import JSONObject

_GENERATES = "generateContent"
_PREFIX = "models/"


def model_name(model: str) -> str:
    """Return the name of a model as it is in URLs: `models/gemini-2.5-flash` is the resource of `gemini-2.5-flash`."""
    return model.removeprefix(_PREFIX)


def listed_model(entry: JSONObject) -> JSONObject | None:
    """Return the entry of a model with its name as `id`; None if it generates no content, like embedding models."""
    methods = json_list(entry.get("supportedGenerationMethods"))
    if methods and _GENERATES not in methods:
        return None
    return {"owned_by": "google", **entry, "id": json_text(entry.get("name")).rpartition("/")[2]}
