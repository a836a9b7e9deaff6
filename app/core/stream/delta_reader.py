from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import TEXT, OpenItem
from app.core.stream.tool_calls import CallRules, ToolCalls
from app.core.types import JSONObject
from app.core.types.deltas import (
    AnnotationsAdded,
    AnswerMetadata,
    CitedSource,
    Delta,
    Finished,
    FinishReason,
    ItemStarted,
    NativeItem,
    PartStarted,
    ProviderFields,
    ReasoningDelta,
    ReasoningSummaryDelta,
    RefusalDelta,
    SourcesCited,
    StreamDone,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    UsageReported,
)

_ENDINGS: dict[FinishReason | None, str] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.ERROR: "error",
}


class DeltaReader:
    """
    Passes deltas to the builder.

    `rules` is called once the model calls a tool. `logprobs`: requested by the caller. `finish_required`: this server's
    complete answers have a finish reason.
    """

    def __init__(
        self,
        builder: EventBuilder,
        rules: Callable[[], CallRules] = CallRules,
        *,
        logprobs: bool = False,
        finish_required: bool = False,
    ) -> None:
        self.builder = builder
        self.calls: ToolCalls | None = None  # set with the first call
        self._rules = rules
        self._first = len(builder.response["output"])
        self.finish_reason: FinishReason | None = None
        self.usage: TokenCounts | None = None
        self.prompt_estimate: int | None = None  # tokens of a large prompt, if the answer ended without usage
        self.service_tier: str | None = None
        self.done = False
        self.stopped = False  # a stop sequence was found: further deltas are unwanted
        self._logprobs = logprobs
        self._finish_required = finish_required
        self._native: dict[int, OpenItem] = {}  # by `NativeItem.number`
        self._sources: list[CitedSource] = []  # before the first text

    def feed(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self.reads[type(delta)](self, delta)

    def text(self, delta: TextDelta) -> None:
        if self.calls and self.calls.has_pending_empty:
            self.calls.settle()
        self.builder.write(TEXT, delta.texts, delta.logprobs if self._logprobs else None)
        if self._sources:
            self._cite()

    def reasoning(self, delta: ReasoningDelta) -> None:
        if delta.texts:
            self.builder.reasoning(*delta.texts, source=delta.field)
        if delta.fragments and delta.joiner:
            fields = self.builder.reasoning_upstream()
            if not isinstance(fields.get(delta.field), delta.joiner):
                fields[delta.field] = delta.joiner()
            fields[delta.field].feed(delta.fragments)

    def summary(self, delta: ReasoningSummaryDelta) -> None:
        self.builder.reasoning_summary(delta.text)

    def provider_fields(self, delta: ProviderFields) -> None:
        if delta.item == "message":
            self.builder.message_upstream().update(delta.fields)
        else:
            self.builder.reasoning_upstream().update(delta.fields)

    def refusal(self, delta: RefusalDelta) -> None:
        self.builder.refusal(delta.text)

    def annotations(self, delta: AnnotationsAdded) -> None:
        for annotation in delta.annotations:
            self.builder.annotation(annotation)

    def sources(self, delta: SourcesCited) -> None:
        self._sources += delta.sources
        self._cite()

    def call(self, delta: ToolCallDelta) -> None:
        if self.calls is None:
            self.calls = ToolCalls(self.builder, self._rules())
        self.calls.feed(delta)

    def item_started(self, delta: ItemStarted) -> None:
        self._settle_calls()
        self.builder.begin_item(delta.type, delta.phase)

    def part_started(self, delta: PartStarted) -> None:
        self._settle_calls()
        self.builder.begin_part()

    def native_item(self, delta: NativeItem) -> None:
        opened = self._native.get(delta.number)
        if opened is None:
            self._settle_calls()
            assert delta.item is not None
            opened = self._native[delta.number] = self.builder.add_native_item(delta.item)
        if delta.event is not None:
            self.builder.native_event(opened, delta.event)
        elif delta.done and delta.item is not None:
            self.builder.end_native_item(opened, delta.item, delta.provider_fields or {})

    def metadata(self, delta: AnswerMetadata) -> None:
        self.service_tier = delta.service_tier or self.service_tier

    def usage_reported(self, delta: UsageReported) -> None:
        self.usage = delta.usage

    def finished(self, delta: Finished) -> None:
        # Some servers send several reasons. The first except `stop` is the most specific.
        if self.finish_reason in (None, FinishReason.STOP):
            self.finish_reason = delta.reason
            self.builder.stop_sequence = delta.stop_sequence

    def stream_done(self, delta: StreamDone) -> None:
        self.done = True

    def _settle_calls(self) -> None:
        if self.calls and self.calls.has_pending_empty:
            self.calls.settle()

    def _cite(self) -> None:
        output = self.builder.response["output"]
        if output and output[-1]["type"] == "message":
            for source in self._sources:
                self.builder.annotation({**_WHOLE_ANSWER, "url": source["url"], "title": source["title"]})
            self._sources = []

    @property
    def has_output(self) -> bool:
        return len(self.builder.response["output"]) > self._first

    @property
    def ended(self) -> str | None:
        """
        `completed`, `max_output_tokens`, `content_filter` or `error`; None if the stream broke off.

        A call with incomplete arguments was truncated, even if the finish reason is `stop`. An empty stream is not an
        answer.
        """
        if self.finish_reason is None and (self._finish_required or not (self.done and self.has_output)):
            return None
        ending = _ENDINGS.get(self.finish_reason, "completed")
        return "max_output_tokens" if ending == "completed" and self.calls and self.calls.cut else ending

    def end(self, *, cut: bool) -> None:
        """`cut`: whether the answer was truncated or failed."""
        if self.calls:
            self.calls.end(cut=cut)

    reads: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        TextDelta: text,
        ReasoningDelta: reasoning,
        ReasoningSummaryDelta: summary,
        ProviderFields: provider_fields,
        RefusalDelta: refusal,
        AnnotationsAdded: annotations,
        SourcesCited: sources,
        ToolCallDelta: call,
        ItemStarted: item_started,
        PartStarted: part_started,
        NativeItem: native_item,
        AnswerMetadata: metadata,
        UsageReported: usage_reported,
        Finished: finished,
        StreamDone: stream_done,
    }


_WHOLE_ANSWER: JSONObject = {"type": "url_citation", "url": "", "start_index": 0, "end_index": 0, "title": ""}
