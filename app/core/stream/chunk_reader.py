"""Read the chunks of a Chat Completions answer into an `EventBuilder`."""

from __future__ import annotations

from app.core.stream.annotations import flat_annotations, flat_logprobs, whole_citation
from app.core.stream.event_builder import EventBuilder
from app.core.stream.open_items import OpenPassed
from app.core.stream.reasoning_fragments import FRAGMENTS
from app.core.stream.tool_calls import ANY_CALLS, CallLimits, CallRules, ToolCalls
from app.core.types import JSONObject
from app.core.types.chunk import (
    DONE,
    REASONING_CONTENT,
    Chunk,
    ChunkChoice,
    ChunkDelta,
    ChunkOrRun,
    ChunkRun,
    CitedSource,
    PassedItem,
)

# Finish reasons of a truncated answer, with its ending. Any other reason means that the model finished.
_ENDINGS = {"length": "max_output_tokens", "content_filter": "content_filter", "error": "error"}


class ChunkReader:
    """
    Reads the chunks of one answer as they arrive; `ended` then reports how it ended.

    `logprobs`: whether the caller requested them. `finish_required`: whether this server sends a finish reason with
    every complete answer.
    """

    def __init__(
        self,
        builder: EventBuilder,
        rules: CallRules = ANY_CALLS,
        limits: CallLimits | None = None,
        *,
        logprobs: bool = False,
        finish_required: bool = False,
    ) -> None:
        self.builder = builder
        self.calls = ToolCalls(builder, rules, limits or CallLimits())
        self._first = len(builder.response["output"])  # index of this answer's first item
        self.finish_reason: str | None = None
        self.usage: JSONObject | None = None
        self.prompt_estimate: int | None = None  # tokens of a large prompt, if the answer has ended without usage
        self.service_tier: str | None = None
        self.done = False  # whether `[DONE]` was received
        self._logprobs = logprobs
        self._finish_required = finish_required
        self._passed: dict[int, OpenPassed] = {}  # items of tools of the server, by their number
        self._sources: list[CitedSource] = []  # cited before there is any text

    def feed(self, chunk: ChunkOrRun) -> None:
        """Process a chunk, or a run of chunks."""
        if not isinstance(chunk, ChunkRun):
            self._feed_chunk(chunk)
            return
        texts = chunk.texts
        if chunk.field == "content":
            if self.calls.has_pending_empty:
                self.calls.settle()
            self.builder.texts(texts)
        elif chunk.field == "arguments":
            self.calls.feed_arguments(chunk.like["choices"][0]["delta"]["tool_calls"][0], texts)
        else:
            source = chunk.like["choices"][0]["delta"].get("reasoning_field", REASONING_CONTENT)
            self.builder.reasoning(*texts, source=source)
        if self._sources:
            self._cite()

    def _feed_chunk(self, chunk: Chunk) -> None:
        if chunk is DONE:
            self.done = True
            return
        if usage := chunk.get("usage"):
            self.usage = usage
        if sources := chunk.get("sources"):
            self._sources += sources
        if (tier := chunk.get("service_tier")) and isinstance(tier, str):
            self.service_tier = tier
        choices = chunk.get("choices")
        if choices:
            choice = choices[0]
            delta = choice["delta"]
            if len(delta) > 1:
                self._feed_delta(delta, choice)
            elif "content" in delta:  # nearly every chunk
                self._feed_text(delta["content"], choice)
            elif "tool_calls" in delta:
                self.calls.feed(delta["tool_calls"] or ())
            elif delta:
                self._feed_delta(delta, choice)
        if self._sources:
            self._cite()
        # Servers send it on every chunk, twice, or with two values: the first other than `stop` is the most specific.
        if choices and (reason := choice.get("finish_reason")) and self.finish_reason in (None, "stop"):
            self.finish_reason = reason

    def _feed_delta(self, delta: ChunkDelta, choice: ChunkChoice) -> None:
        """Process reasoning, then text, then calls: the order in which a model generates them."""
        if "starts_item" in delta or "starts_part" in delta:
            self._start(delta)
        if passed := delta.get("passed"):
            self._pass(passed)
        if reasoning := delta.get("reasoning_content"):
            self.builder.reasoning(reasoning, source=delta.get("reasoning_field", REASONING_CONTENT))
            if len(delta) == 1:
                return
        if summary := delta.get("reasoning_summary"):
            self.builder.reasoning_summary(summary)
        if fragments := delta.get("reasoning_fragments"):
            for name, more in fragments.items():
                fields = self.builder.reasoning_upstream()
                if not isinstance(fields.get(name), FRAGMENTS[name]):
                    fields[name] = FRAGMENTS[name]()
                fields[name].feed(more)
        if upstream := delta.get("reasoning_upstream"):
            self.builder.reasoning_upstream().update(upstream)
        self._feed_text(delta.get("content"), choice)
        if refusal := delta.get("refusal"):
            self.builder.refusal(refusal)
        if annotations := delta.get("annotations"):
            for annotation in flat_annotations(annotations):
                self.builder.annotation(annotation)
        if calls := delta.get("tool_calls"):
            self.calls.feed(calls)

    def _start(self, delta: ChunkDelta) -> None:
        if self.calls.has_pending_empty:
            self.calls.settle()
        if item := delta.get("starts_item"):
            self.builder.begin_item(item)
        if delta.get("starts_part"):
            self.builder.begin_part()

    def _pass(self, passed: PassedItem) -> None:
        """Pass on an item of a tool of the server, or an event about one."""
        opened = self._passed.get(passed["number"])
        if opened is None:
            if self.calls.has_pending_empty:
                self.calls.settle()
            opened = self._passed[passed["number"]] = self.builder.pass_item(passed["item"])
        if "event" in passed:
            self.builder.pass_event(opened, passed["event"])
        elif passed.get("done"):
            self.builder.end_passed(opened, passed["item"], passed.get("upstream", {}))

    def _feed_text(self, text: str | None, choice: ChunkChoice) -> None:
        if not text:
            return
        if self.calls.has_pending_empty:
            self.calls.settle()
        logprobs = choice.get("logprobs") if self._logprobs else None
        self.builder.text(text, logprobs=flat_logprobs(logprobs) if logprobs else None)

    def _cite(self) -> None:
        """Add the sources of the whole answer as annotations, once there is a text."""
        output = self.builder.response["output"]
        if output and output[-1]["type"] == "message":
            for source in self._sources:
                self.builder.annotation(whole_citation(source))
            self._sources = []

    @property
    def ended(self) -> str | None:
        """
        How the answer ended: `completed`, `max_output_tokens`, `content_filter`, `error`; None: the stream broke off.

        The content overrules the finish reason: a call with incomplete arguments was truncated, even with `tool_calls`
        or `stop`. `[DONE]` without any output is not an answer.
        """
        complete = self.done and len(self.builder.response["output"]) > self._first and not self._finish_required
        if self.finish_reason is None and not complete:
            return None
        ending = _ENDINGS.get(self.finish_reason or "", "completed")
        return "max_output_tokens" if ending == "completed" and self.calls.cut else ending
