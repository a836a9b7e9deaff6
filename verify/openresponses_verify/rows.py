"""Registered checks and their results."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.laws.law import docstring_of

if TYPE_CHECKING:
    from openresponses_verify.server import VerifiedServer

Verdict: TypeAlias = Literal["pass", "fail", "unsupported", "unclear"]
CheckFunction: TypeAlias = Callable[["VerifiedServer"], Awaitable[None]]


class NotPassed(Exception):
    """Raised if a check does not pass: the reason, and the exchange as evidence."""

    verdict: Verdict

    def __init__(self, detail: str, exchange: HTTPExchange | None = None, event: object = None) -> None:
        super().__init__(detail)
        self.detail = f"{detail}\n{_shown(event)}" if event is not None else detail
        self.exchange = exchange


class Failed(NotPassed):
    """The server violates the rule; `event` is the offending event or object."""

    verdict = "fail"


class Unsupported(NotPassed):
    """The server reports a missing feature."""

    verdict = "unsupported"


class Inconclusive(NotPassed):
    """The rule was not tested: the model did not cooperate, or an answer was missing."""

    verdict = "unclear"


class Check(NamedTuple):
    """A check. Its `id` is stable; `source` is the source of the rule."""

    id: str
    title: str
    law: str
    source: str
    run: CheckFunction

    @property
    def group(self) -> str:
        return self.id.partition(".")[0]


CHECKS: list[Check] = []


def check_row(row_id: str, title: str, source: str) -> Callable[[CheckFunction], CheckFunction]:
    """
    Register a function as a check, with its docstring as the rule.

    The function returns if the server follows the rule, and raises a subclass of `NotPassed` otherwise.
    """

    def register(run: CheckFunction) -> CheckFunction:
        CHECKS.append(Check(row_id, title, docstring_of(run), source, run))
        return run

    return register


@dataclass(frozen=True)
class CheckResult:
    check: Check
    verdict: Verdict
    detail: str = ""
    request: str = ""
    seconds: float = 0.0


def _shown(event: object) -> str:
    text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False, default=str)
    return text if len(text) <= 600 else f"{text[:597]}..."


def require(condition: object, detail: str, exchange: HTTPExchange | None = None, event: object = None) -> None:
    if not condition:
        raise Failed(detail, exchange, event)
