"""
Model prices and response costs in nanos, billionths of the currency unit.

    prices = PriceList({"gpt-5*": Price.per_million(Decimal("1.25"), Decimal("10"))})
    prices.cost("gpt-5-mini", counts_of(usage))   # 1250000, which is 0.00125
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

NANO = 10**9


class Price(NamedTuple):
    """Prices per token, in thousandths of a nano."""

    input: int
    cached_input: int
    output: int
    cache_write: int
    batch: int = 1000  # thousandths of the full price

    @classmethod
    def per_million(
        cls,
        fresh_input: Decimal,
        output: Decimal,
        cached_input: Decimal | None = None,
        cache_write: Decimal | None = None,
        batch: Decimal = Decimal(1),
    ) -> Price:
        """Cache prices default to the input price; `batch` is the fraction of the price for batch requests."""
        cached = fresh_input if cached_input is None else cached_input
        written = fresh_input if cache_write is None else cache_write
        prices = (int(price * 10**6) for price in (fresh_input, cached, output, written))
        return cls(*prices)._replace(batch=int(batch * 1000))

    def cost(self, input_tokens: int, cached: int, output: int, written: int = 0) -> int:
        """Cost in nanos; `input_tokens` includes cached tokens."""
        written = min(written, input_tokens - cached)
        fresh = self.input * (input_tokens - cached - written)
        return (fresh + self.cached_input * cached + self.cache_write * written + self.output * output + 500) // 1000


class PriceList:
    """Model prices by glob; the first match applies, and `by_backend` takes precedence."""

    def __init__(
        self,
        prices: Mapping[str, Price] | None = None,
        by_backend: Mapping[str, Mapping[str, Price]] | None = None,
    ) -> None:
        self._prices = dict(prices or {})
        self._by_backend = dict(by_backend or {})
        self.price = lru_cache(maxsize=1000)(self._match)

    def __bool__(self) -> bool:
        return bool(self._prices)

    def _match(self, model: str, backend: str = "") -> Price | None:
        globs = [*self._by_backend.get(backend, {}).items(), *self._prices.items()]
        return next((price for glob, price in globs if fnmatchcase(model, glob)), None)

    def cost(
        self, model: str, counts: tuple[int, int, int, int, int], *, backend: str = "", batch: bool = False
    ) -> int | None:
        """Cost of the `counts_of` a usage, in nanos; None without a price."""
        if (price := self.price(model, backend)) is None:
            return None
        input_tokens, output_tokens, cached, written, _ = counts
        cost = price.cost(input_tokens, cached, output_tokens, written)
        return (cost * price.batch + 500) // 1000 if batch else cost


def format_money(nanos: int) -> str:
    """For example `0.00125`."""
    text = f"{nanos // NANO}.{nanos % NANO:09d}".rstrip("0")
    return text.rstrip(".")
