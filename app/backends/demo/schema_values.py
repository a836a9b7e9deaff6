"""
Generate a valid value for a JSON schema, if possible related to the prompt.

For a question about the weather in Paris: `{"location": "Paris"}`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from contextlib import suppress

from app.core.types import JSONObject

_MAX_OPTIONAL_DEPTH = 6  # depth below which only required values are generated
_MAX_DEPTH = 50  # a deeper schema counts as infinitely recursive
_MAX_VALUES = 10_000  # values, or hundreds of characters

FORMATS = {
    "date": "2024-01-15",
    "time": "12:00:00Z",
    "date-time": "2024-01-15T12:00:00Z",
    "duration": "P1D",
    "email": "ada@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}
_CANDIDATES = (
    "a",
    "A",
    "1",
    "ab",
    "AB",
    "12",
    "abc",
    "ABC",
    "123",
    "1234",
    "12345",
    "123456",
    "ABC-123",
    "AB123",
    "a@b.co",
)
_USUAL = {"name": "Ada Lovelace", "city": "Paris", "location": "Paris", "country": "France", "language": "en"}
_USUAL |= dict.fromkeys(("cmd", "command"), "echo hello")  # run by coding agents
# Capitalized words inside a sentence.
_NAMES = re.compile(r"(?<![.!?] )(?<!^)\b[A-Z][a-z]\w*(?:,? [A-Z]\w*)*")
_SUM = re.compile(r"(?<![\d.])[\d.]++(\s*[-+*/x^]\s*[\d.]+)+")
_ZONE = re.compile(r"\b[A-Z]\w+/[A-Z]\w+")
# Bounded, because hostile texts can repeat the start of a match.
_CODE = re.compile(r"```(?:\w{0,20}\n)?(.{1,2000}?)```|`([^`]{1,2000})`|\b(print\([^\n]{0,500}\))", re.DOTALL)
_PROMPT_FIELD = re.compile(r"quer(?:y|ies)|question|text|prompt|message|input|content|task|request", re.IGNORECASE)


class Values:
    def __init__(self, schema: dict[str, object], prompt: str) -> None:
        self._root = schema
        self._left = _MAX_VALUES
        self._prompt = prompt
        self._numbers: Iterator[str] = iter(re.findall(r"(?<![\w.-])-?\d+(?:\.\d+)?(?!\.?\w)", prompt))

    def fill(self, schema: object, name: str = "", nth: int = 0, depth: int = 0) -> object:
        """`nth` is an item's index in its array."""
        self._spend(1)
        if depth > _MAX_DEPTH:
            return None
        if not isinstance(schema, dict):
            return self._string({}, name, nth)
        if isinstance(ref := schema.get("$ref"), str):
            return self.fill({**self._resolve(ref), **_without(schema, "$ref")}, name, nth, depth + 1)
        if parts := schema.get("allOf"):
            return self.fill(self._merged([_without(schema, "allOf"), *parts]), name, nth, depth)
        if options := schema.get("anyOf") or schema.get("oneOf"):
            others = [option for option in options if not (isinstance(option, dict) and option.get("type") == "null")]
            chosen = options[-1] if depth > _MAX_OPTIONAL_DEPTH or not others else others[0]
            return self.fill(self._merged([_without(schema, "anyOf", "oneOf"), chosen]), name, nth, depth)
        if "const" in schema:
            return schema["const"]
        if values := schema.get("enum"):
            named = [
                value for value in values if re.search(rf"\b{re.escape(str(value))}\b", self._prompt, re.IGNORECASE)
            ]
            return named[0] if named and not nth else values[nth % len(values)]
        match _type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, name, depth)
            case "integer" | "number" as kind:
                return self._number(schema, kind == "integer", nth)
            case "boolean":
                return True
            case "null":
                return None
        return self._string(schema, name, nth)

    def _spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise ValueError("it requires too many or too long values")

    def _object(self, schema: JSONObject, depth: int) -> dict[str, object]:
        properties = schema.get("properties") or {}
        names = list(schema.get("required") or (properties if depth < _MAX_OPTIONAL_DEPTH else ()))
        filled = {name: self.fill(properties.get(name, True), name, 0, depth + 1) for name in names}
        extra = schema.get("additionalProperties", True)
        while len(filled) < schema.get("minProperties", 0):
            filled[f"key{len(filled) + 1}"] = self.fill(extra, "", len(filled), depth + 1)
        return filled

    def _array(self, schema: JSONObject, name: str, depth: int) -> list[object]:
        first = schema.get("prefixItems") or []
        minimum = max(schema.get("minItems", 0), len(first), 1 if depth < _MAX_OPTIONAL_DEPTH else 0)
        count = min(minimum, schema.get("maxItems", minimum))
        self._spend(count)
        kinds = [first[n] if n < len(first) else schema.get("items", True) for n in range(count)]
        return [self.fill(kind, name, n, depth + 1) for n, kind in enumerate(kinds)]

    def _number(self, schema: dict[str, object], whole: bool, nth: int) -> int | float:
        low, high, step = _bounds(schema, whole)
        numbers = (number for number in map(float, self._numbers) if math.isfinite(number))
        number = next((number for number in numbers if low <= number <= high and not (step and number % step)), None)
        if number is None:
            number = min(max(1, low), high)
            if step:
                number = math.ceil(number / step) * step
            number += nth * (step or 1)
            if number > high:
                number = math.floor(high / step) * step if step else high
        return int(number) if float(number).is_integer() else number

    def _string(self, schema: JSONObject, name: str, nth: int) -> str:
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        text = self._words_for(name)
        if pattern := schema.get("pattern"):
            # Not the prompt: some patterns run for very long on long texts.
            with suppress(re.error):
                text = next((candidate for candidate in _CANDIDATES if re.search(pattern, candidate)), text)
        elif nth:
            text = f"{text} {nth + 1}"
        self._spend(schema.get("minLength", 0) // 100)
        text = text.ljust(schema.get("minLength", 0), "x")
        return text[: schema.get("maxLength", len(text))]

    def _words_for(self, name: str) -> str:
        if name == "code":
            return self._code()
        if _PROMPT_FIELD.search(name):
            return self._prompt
        if re.search(r"expr|formula|calc", name) and (match := _SUM.search(self._prompt)):
            return match[0]
        if re.search(r"time_?zone", name, re.IGNORECASE):
            return match[0] if (match := _ZONE.search(self._prompt)) else "UTC"
        if names := _NAMES.findall(self._prompt):
            return str(names[-1])
        return next((value for field, value in _USUAL.items() if field in name.lower()), "example")

    def _code(self) -> str:
        if match := _CODE.search(self._prompt):
            code = str(next(filter(None, match.groups()))).strip()
            if _is_python(code):
                return code
        if (match := _SUM.search(self._prompt)) and len(match[0]) <= 200:
            code = f"print({match[0].replace('x', '*').replace('^', '**')})"
            if _is_python(code):
                return code
        return f"print({self._prompt!r})"

    def _merged(self, schemas: list[object]) -> dict[str, object]:
        merged: JSONObject = {}
        for schema in schemas:
            if not isinstance(schema, dict):
                continue
            if isinstance(ref := schema.get("$ref"), str):
                schema = {**self._resolve(ref), **_without(schema, "$ref")}
            properties = {**merged.get("properties", {}), **schema.get("properties", {})}
            required = [*merged.get("required", []), *schema.get("required", [])]
            merged |= schema
            if properties:
                merged["properties"] = properties
            if required:
                merged["required"] = list(dict.fromkeys(required))
        return merged

    def _resolve(self, ref: str) -> dict[str, object]:
        target: object = self._root
        for step in ref.removeprefix("#").strip("/").split("/") if ref.strip("#/") else ():
            target = target.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(target, dict) else {}
        return target if isinstance(target, dict) else {}


def value_for(schema: dict[str, object], prompt: str) -> object:
    """Raises `ValueError` for an invalid or too large schema."""
    try:
        return Values(schema, prompt).fill(schema)
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error


def _without(schema: dict[str, object], *names: str) -> JSONObject:
    return {name: value for name, value in schema.items() if name not in names}


def _type(schema: dict[str, object]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind:
        return str(kind)
    return "object" if "properties" in schema or "required" in schema else "array" if "items" in schema else "string"


def _bounds(schema: JSONObject, whole: bool) -> tuple[float, float, float]:
    """Minimum, maximum and step (0 for none)."""
    step = schema.get("multipleOf") or (1 if whole else 0)
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if "exclusiveMinimum" in schema:
        low = max(low, schema["exclusiveMinimum"] + (step or 0.5))
    if "exclusiveMaximum" in schema:
        high = min(high, schema["exclusiveMaximum"] - (step or 0.5))
    return low, high, step


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
