"""
What responses cost, in exact integers: 1,000,000,000 of `NANO` are one unit of the operator's currency.

    prices = PriceList({"gpt-5*": Price.per_million(Decimal("1.25"), Decimal("10"))})
    prices.cost("gpt-5-mini", usage)   # 1250000, which is 0.00125
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

NANO = 10**9
_CACHED = 1000  # models whose price is remembered


class Price(NamedTuple):
    """The price of a model: billionths of a thousandth of a unit, for one token."""

    input: int
    cached_input: int
    output: int

    @classmethod
    def per_million(cls, input: Decimal, output: Decimal, cached_input: Decimal | None = None) -> Price:
        """Return the price from those of a million tokens; without one of its own, cached input costs as any other."""
        cached = input if cached_input is None else cached_input
        return cls(*(int(price * 10**6) for price in (input, cached, output)))

    def cost(self, input: int, cached: int, output: int) -> int:
        """Return the cost in nanos of so many tokens; those of the input include the cached ones."""
        return (self.input * (input - cached) + self.cached_input * cached + self.output * output + 500) // 1000


class PriceList:
    """The prices of models, by glob: the first that matches is a model's."""

    def __init__(self, prices: Mapping[str, Price] | None = None) -> None:
        self._prices = dict(prices or {})
        self._of_models: dict[str, Price | None] = {}

    def price(self, model: str) -> Price | None:
        """Return the price of a model; None if it has none."""
        try:
            return self._of_models[model]
        except KeyError:
            pass
        found = next((price for glob, price in self._prices.items() if fnmatchcase(model, glob)), None)
        if len(self._of_models) < _CACHED:
            self._of_models[model] = found
        return found

    def cost(self, model: str, usage: Mapping[str, Any]) -> int | None:
        """Return the cost in nanos of the usage of a response; None for a model without a price."""
        if (price := self.price(model)) is None:
            return None
        details = usage.get("input_tokens_details") or {}
        return price.cost(usage["input_tokens"], details.get("cached_tokens", 0), usage["output_tokens"])


def format_money(nanos: int) -> str:
    """Return an amount as a decimal number without needless zeros, such as `0.00125`."""
    text = f"{nanos // NANO}.{nanos % NANO:09d}".rstrip("0")
    return text.rstrip(".")
