"""Enforce stop sequences, including for model servers without support for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from app.core.stream.delta_reader import DeltaReader
from app.core.types import JSONMapping
from app.core.types.deltas import AnswerMetadata, Delta, FinishReason, TextDelta, UsageReported


def stop_sequences(parameters: JSONMapping | None) -> list[str]:
    """Valid stop sequences in unvalidated extra fields."""
    if not parameters or not (stop := parameters.get("stop")):
        return []
    return [entry for entry in (stop if isinstance(stop, list) else [stop]) if isinstance(entry, str) and entry]


def _unless_stopped(read: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def read_unless_stopped(reader: StoppingReader, delta: Delta) -> None:
        if not reader.stopped:
            reader.flush()
            read(reader, delta)

    return read_unless_stopped


class StoppingReader(DeltaReader):
    """Ends the answer at the first complete stop sequence; holds back text that may start one."""

    def __init__(self, sequences: Sequence[str], *rules: Any, **options: Any) -> None:
        super().__init__(*rules, **options)
        self._sequences = sequences
        self._held = ""
        self._held_logprobs: list[Any] = []

    def text(self, delta: TextDelta) -> None:
        if self.stopped:
            return
        self._held_logprobs += delta.logprobs or ()
        text = self._held + "".join(delta.texts)
        found = [(at + len(sequence), at, sequence) for sequence in self._sequences if (at := text.find(sequence)) >= 0]
        if found:
            _, end, self.builder.stop_sequence = min(found)
            self._held = ""
            self.stopped = True
            self.finish_reason = FinishReason.STOP
        else:
            starts = (
                sequence[:length]
                for sequence in self._sequences
                for length in range(1, min(len(sequence), len(text) + 1))
            )
            end = len(text) - max((len(start) for start in starts if text.endswith(start)), default=0)
            self._held = text[end:]
        if end:
            logprobs = _logprobs_of(text[:end], self._held_logprobs)
            del self._held_logprobs[: len(logprobs)]
            super().text(TextDelta([text[:end]], logprobs))

    def end(self, *, cut: bool) -> None:
        self.flush()
        super().end(cut=cut)

    def flush(self) -> None:
        if held := self._held:
            self._held = ""
            logprobs, self._held_logprobs = self._held_logprobs, []
            super().text(TextDelta([held], logprobs))

    reads = MappingProxyType(
        {
            **{kind: _unless_stopped(read) for kind, read in DeltaReader.reads.items()},
            TextDelta: text,
            **{kind: DeltaReader.reads[kind] for kind in (AnswerMetadata, UsageReported)},  # also between texts
        }
    )


def _logprobs_of(text: str, logprobs: Sequence[JSONMapping]) -> list[Any]:
    """The first logprobs, up to the token with the end of `text`."""
    kept, length = [], 0
    for entry in logprobs:
        if length >= len(text):
            break
        kept.append(entry)
        length += len(entry.get("token") or "")
    return kept
