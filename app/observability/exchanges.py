"""Exchanges with model servers that are observed: measured, or recorded as spans."""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from app.backends import AnswerReceiver, BackendExchange, ExchangeWrapper, RawAnswer, RawExchange, Tap

T = TypeVar("T")
_Exchange = TypeVar("_Exchange", BackendExchange, RawExchange)


class ExchangeObservation(Protocol):
    """Sees one exchange."""

    @property
    def tap(self) -> Tap | None:
        """What sees the chunks of the answer."""
        ...

    def begin(self) -> None:
        """See that the request is about to be sent."""
        ...

    def accepted(self, answer: RawAnswer | None) -> None:
        """See that the server has accepted it; only one that is passed on has an answer of its own."""
        ...

    def end(self, error: BaseException | None) -> None:
        """See the end, and the error that ended it."""
        ...


class _Observed(Generic[_Exchange]):
    def __init__(self, exchange: _Exchange, observation: ExchangeObservation) -> None:
        self._exchange: _Exchange = exchange
        self._observation = observation

    async def _entered(self, entering: Awaitable[T]) -> T:
        self._observation.begin()
        try:
            return await entering
        except BaseException as error:
            self._observation.end(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._exchange.__aexit__(kind, error, trace)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._observation.end(error)


class ObservedExchange(_Observed[BackendExchange], ExchangeWrapper):
    """An exchange that is observed."""

    async def __aenter__(self) -> Self:
        await self._entered(self._exchange.__aenter__())
        self._observation.accepted(None)
        return self

    async def receive(self, receiver: AnswerReceiver) -> None:
        if (tap := self._observation.tap) is None:
            await self._exchange.receive(receiver)
            return
        receiver.taps.append(tap)
        try:
            await self._exchange.receive(receiver)
        finally:
            receiver.taps.remove(tap)


class ObservedRawExchange(_Observed[RawExchange]):
    """The exchange of a request that is passed on, observed."""

    async def __aenter__(self) -> RawAnswer:
        answer = await self._entered(self._exchange.__aenter__())
        self._observation.accepted(answer)
        return answer
