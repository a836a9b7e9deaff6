from __future__ import annotations

from app.core.json_values import json_list, json_text
from app.core.types import JSONObject

_GENERATES = "generateContent"
_PREFIX = "models/"


def model_name(model: str) -> str:
    """`gemini-2.5-flash` for the resource `models/gemini-2.5-flash`."""
    return model.removeprefix(_PREFIX)


def listed_model(entry: JSONObject) -> JSONObject | None:
    """None for models that do not generate text."""
    methods = json_list(entry.get("supportedGenerationMethods"))
    if methods and _GENERATES not in methods:
        return None
    return {"owned_by": "google", **entry, "id": json_text(entry.get("name")).rpartition("/")[2]}
