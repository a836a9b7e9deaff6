"""Enforce stop sequences, including for model servers without support for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from app.core.stream.delta_reader import DeltaReader
from app.core.types import JSONMapping
from app.core.types.deltas import (
    AnswerMetadata,
    Delta,
    FinishReason,
    TextDelta,
    UsageReported,
)


def stop_sequences(parameters: JSONMapping | None) -> list[str]:
    """Valid stop sequences in unvalidated extra fields."""
    if not parameters or not (stop := parameters.get("stop")):
        return []
    return [entry for entry in (stop if isinstance(stop, list) else [stop]) if isinstance(entry, str) and entry]


class StopSequences:
    """Finds the first complete stop sequence in text pieces; holds back a possible start."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = sequences
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text before a match or a possible start."""
        text = self._held + text
        found = [(at + len(sequence), at, sequence) for sequence in self._sequences if (at := text.find(sequence)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return text[:at]
        kept = max(_overlap(text, sequence) for sequence in self._sequences)
        end = len(text) - kept
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, sequence: str) -> int:
    """Length of the longest text suffix that is a proper prefix of a sequence."""
    longest = min(len(sequence) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(sequence[:length])), 0)


def _unless_stopped(read: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def read_unless_stopped(reader: StoppingReader, delta: Delta) -> None:
        if not reader.stopped:
            reader.flush()
            read(reader, delta)

    return read_unless_stopped


class StoppingReader(DeltaReader):
    def __init__(self, sequences: Sequence[str], *rules: Any, **options: Any) -> None:
        super().__init__(*rules, **options)
        self._stop = StopSequences(sequences)
        self._held_logprobs: list[Any] = []

    def text(self, delta: TextDelta) -> None:
        if self.stopped:
            return
        self._held_logprobs += delta.logprobs or ()
        if text := self._stop.feed("".join(delta.texts)):
            logprobs = _within(self._held_logprobs, text)
            del self._held_logprobs[: len(logprobs)]
            super().text(TextDelta([text], logprobs))
        if self._stop.matched is not None:
            self.stopped = True
            self.finish_reason = FinishReason.STOP
            self.builder.stop_sequence = self._stop.matched

    def end(self, *, cut: bool) -> None:
        self.flush()
        super().end(cut=cut)

    def flush(self) -> None:
        if held := self._stop.flush():
            logprobs, self._held_logprobs = self._held_logprobs, []
            super().text(TextDelta([held], logprobs))

    reads = MappingProxyType(
        {
            **{kind: _unless_stopped(read) for kind, read in DeltaReader.reads.items()},
            TextDelta: text,
            **{kind: DeltaReader.reads[kind] for kind in (AnswerMetadata, UsageReported)},  # also between texts
        }
    )


def _within(logprobs: Sequence[JSONMapping], text: str) -> list[Any]:
    kept, length = [], 0
    for entry in logprobs:
        if length >= len(text):
            break
        kept.append(entry)
        length += len(entry.get("token") or "")
    return kept
