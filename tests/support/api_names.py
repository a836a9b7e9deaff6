"""Responses API names in the types of the official packages, for Python and Node.js."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin

import typing_extensions
from openai import BaseModel

Name = tuple[str, str]  # the heading of docs/compatibility.md, and the name under it

PAGE = Path(__file__).parent.parent.parent / "docs" / "compatibility.md"


def rows() -> dict[Name, str]:
    """Return the status of each name on the page."""
    found: dict[Name, str] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        for names, status in re.findall(r"^\| (`.+?`) \| ([a-z ]+) \|", body, re.M):
            for name in re.findall(r"`([^`]+)`", names):
                assert (heading, name) not in found, f"{name} is twice under {heading}"
                found[heading, name] = status
    return found


class Types(Protocol):
    """A package's types. A *kind* is the type of a single value: an object type or a literal."""

    def members(self, annotation: Any) -> list[Any]:
        """Return the kinds of a value or of list elements."""
        ...

    def fields(self, kind: Any) -> dict[str, Any]:
        """Return the fields of an object, with their types; {} for anything else."""
        ...

    def literals(self, annotation: Any) -> list[str]:
        """Return the values listed by a type."""
        ...


class Roots(NamedTuple):
    """Where the walk begins: some types of each kind."""

    items: Sequence[Any]
    tools: Sequence[Any]
    events: Sequence[Any]
    frames: Sequence[Any]
    include: Sequence[Any]
    responses: Sequence[Any]


def tag(package: Types, kind: Any) -> str | None:
    """Return the `type` of an object."""
    hint = package.fields(kind).get("type")
    return next(iter(package.literals(hint)), None) if hint is not None else None


def tags(package: Types, roots: Iterable[Any]) -> set[str]:
    return {name for root in roots for kind in package.members(root) if (name := tag(package, kind))}


def names(package: Types, roots: Roots) -> set[Name]:
    """Return a package's names, without parameter names."""
    found = {("Items", name) for name in tags(package, roots.items)}
    found |= {("Tools", name) for name in tags(package, roots.tools)}
    found |= {("Events", name) for name in tags(package, roots.events)}
    found |= {("Frames of a WebSocket", name) for name in tags(package, roots.frames)}
    found |= {("Values of include", value) for one in roots.include for value in package.literals(one)}
    found |= {("Fields of a response", name) for one in roots.responses for name in _of_a_response(package, one)}
    for heading, objects, skipped in (
        ("Parts and other objects in items", roots.items, frozenset({"tools"})),
        ("Objects in tools", roots.tools, frozenset[str]()),
    ):
        for kind in (kind for root in objects for kind in package.members(root)):
            found |= {(heading, name) for name in _nested(package, kind, skipped, frozenset())}
    return found


def _nested(package: Types, kind: Any, skipped: frozenset[str], seen: frozenset[Any]) -> Iterator[str]:
    """Yield the types of the objects within an object, each behind its field: `content: input_text`."""
    for name, hint in package.fields(kind).items():
        for inner in package.members(hint) if name not in skipped else ():
            if inner not in seen and package.fields(inner):
                if named := tag(package, inner):
                    yield f"{name}: {named}"
                yield from _nested(package, inner, skipped, seen | {inner})
        if name == "allowed_callers":
            yield from (f"{name}: {value}" for value in package.literals(hint))


def _of_a_response(package: Types, kind: Any) -> Iterator[str]:
    for name, hint in package.fields(kind).items():
        yield name
        if name == "status":
            yield from (f"status: {value}" for value in package.literals(hint))
        for inner in package.members(hint) if name in ("incomplete_details", "usage", "error") else ():
            for field, values in package.fields(inner).items():
                if name == "incomplete_details":
                    yield from (f"{name}.{field}: {value}" for value in package.literals(values))
                else:
                    yield f"{name}.{field}"


# Python.


def plain(annotation: Any) -> Any:
    while get_origin(annotation) in (typing.Required, typing.NotRequired, typing.Annotated, typing_extensions.Required):
        annotation = get_args(annotation)[0]
    return annotation


def variants(annotation: Any) -> list[Any]:
    """Return the members of a union, or the type itself."""
    annotation = plain(annotation)
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [inner for part in get_args(annotation) for inner in variants(part)]
    return [annotation]


def element(annotation: Any) -> Any:
    """Return a list's element type; None for other types."""
    origin = get_origin(annotation)
    is_list = isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, dict)
    return get_args(annotation)[0] if is_list else None


def is_object(annotation: Any) -> bool:
    """Return whether a type is an object type in a request."""
    return isinstance(annotation, type) and typing_extensions.is_typeddict(annotation)


class PythonTypes:
    """The types of `openai` for Python: typed dicts in requests, models in responses."""

    def members(self, annotation: Any) -> list[Any]:
        found = []
        for one in variants(annotation):
            inner = element(one)
            found += [one] if inner is None else self.members(inner)
        return found

    def fields(self, kind: Any) -> dict[str, Any]:
        if is_object(kind):
            return typing_extensions.get_type_hints(kind, include_extras=True)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
        return {}

    def literals(self, annotation: Any) -> list[str]:
        listed = [one for one in self.members(annotation) if get_origin(one) is Literal]
        return [str(value) for one in listed for value in get_args(one)]


# Node.


class NodeType(NamedTuple):
    """A type as written, and the namespaces for its names."""

    text: str
    scope: tuple[str, ...] = ()


class NodeTypes:
    """The types in a declaration file of `openai` for Node.js, which is generated in a uniform style."""

    def __init__(self, declarations: str) -> None:
        self._lines = re.sub(r"/\*.*?\*/", "", declarations, flags=re.S).splitlines()

    @cached_property
    def _declared(self) -> dict[str, tuple[NodeType | None, dict[str, NodeType], list[NodeType]]]:
        """By qualified name: a type's definition, or an interface's fields and bases."""
        found: dict[str, tuple[NodeType | None, dict[str, NodeType], list[NodeType]]] = {}
        scopes: list[str] = []
        scope: tuple[str, ...] = ()  # of the interface
        interface: dict[str, NodeType] | None = None
        for line in self._lines:
            depth = (len(line) - len(line.lstrip())) // 4
            if interface is not None:
                if field := re.match(r"\s+(\w+)\??: (.+);$", line):
                    interface[field[1]] = NodeType(field[2], scope)
                elif line.strip() == "}":
                    interface = None
                continue
            del scopes[depth:]
            if opened := re.match(r"\s*(?:export )?(?:declare )?namespace (\w+) {", line):
                scopes.append(opened[1])
            elif opened := re.match(r"\s*(?:export )?interface (\w+)(?: extends (.+?))? {(})?$", line):
                interface, scope = {}, (*scopes, opened[1])
                bases = [NodeType(base, tuple(scopes)) for base in (opened[2] or "").split(", ") if base]
                found[".".join(scope)] = (None, interface, bases)
                interface = None if opened[3] else interface
            elif alias := re.match(r"\s*(?:export )?(?:declare )?type (\w+) = (.+);$", line):
                found[".".join([*scopes, alias[1]])] = (NodeType(alias[2], (*scopes, alias[1])), {}, [])
        return found

    def _found(self, kind: NodeType) -> str | None:
        """Return the qualified name of a type; None if it is not declared in the file."""
        name = kind.text.removeprefix("ResponsesAPI.")
        for length in range(len(kind.scope), -1, -1):
            if (qualified := ".".join([*kind.scope[:length], name])) in self._declared:
                return qualified
        return None

    def members(self, annotation: Any) -> list[Any]:
        if isinstance(annotation, str):
            annotation = NodeType(annotation)
        found: list[Any] = []
        for text in _split(annotation.text):
            part = NodeType(text, annotation.scope)
            name = self._found(part)
            if listed := re.fullmatch(r"Array<(.+)>", text) or re.fullmatch(r"\((.+)\)", text):
                found += self.members(NodeType(listed[1], annotation.scope))
            elif name and (meant := self._declared[name][0]):
                found += self.members(meant)
            else:
                found.append(part if name is None else NodeType(name))
        return found

    def fields(self, kind: Any) -> dict[str, Any]:
        name = self._found(NodeType(kind) if isinstance(kind, str) else kind)
        if name is None:
            return {}
        _, own, bases = self._declared[name]
        inherited = {field: hint for base in bases for field, hint in self.fields(base).items()}
        return {**inherited, **own}

    def literals(self, annotation: Any) -> list[str]:
        texts = [one.text for one in self.members(annotation)]
        return [text[1:-1] for text in texts if re.fullmatch(r"'.*'", text)]


def _split(text: str) -> list[str]:
    """Split a union at its top level."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "<({") - (char in ">)}")
        if char == "|" and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]
