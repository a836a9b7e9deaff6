from __future__ import annotations

from app.core.json_values import json_object, json_objects
from app.core.types import JSONObject


def error_with_field(document: JSONObject) -> JSONObject:
    """Copy the invalid field's name to `param`."""
    error = json_object(document.get("error"))
    for detail in json_objects(error.get("details")):
        for violation in json_objects(detail.get("fieldViolations")):
            if field := violation.get("field"):
                return {**document, "error": {**error, "param": field}}
    return document
