"""
Read Chat Completions chunks into an `EventBuilder`.

What all servers do somewhat differently is settled here; what one provider does is settled at the backend's edge,
before a chunk comes this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from app.core.annotations import flat_annotations, flat_logprobs
from app.core.events import EventBuilder
from app.core.kinds import Callee
from app.core.reasoning_details import ReasoningDetails
from app.core.tool_calls import ToolCalls

Chunk: TypeAlias = dict[str, Any]

# What a backend yields for `data: [DONE]`: the server said that this was all.
DONE: Chunk = {"object": "done"}

# The names of raw reasoning: DeepSeek, llama.cpp and SGLang have the first, vLLM, Ollama and OpenRouter the second,
# Copilot the third.
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")

# What a finish reason means, where it is not that the model was done. Any other word means just that.
FINISH = {
    **dict.fromkeys(
        ("length", "max_tokens", "model_length", "model_context_window_exceeded"),
        "max_output_tokens",
    ),
    **dict.fromkeys(
        ("content_filter", "sensitive", "safety", "recitation", "prohibited_content", "blocklist", "spii"),
        "content_filter",
    ),
    **dict.fromkeys(("error", "network_error", "insufficient_system_resource", "abort"), "error"),
}


_TEXT_ALONE = {"content"}  # what nearly every delta has


class ChunkReader:
    """
    Follows one Chat Completions stream: feed it the chunks as they arrive, then ask how it `ended`.

    `callees`, `allowed` and `parallel` are those of `ToolCalls`; `logprobs` says whether the caller asked for them,
    `finish_required` that this server never ends without a finish reason, unless something broke.
    """

    def __init__(
        self,
        builder: EventBuilder,
        callees: Mapping[str, Callee] = MappingProxyType({}),
        *,
        allowed: frozenset[str] | None = None,
        parallel: bool = True,
        logprobs: bool = False,
        finish_required: bool = False,
    ) -> None:
        self.builder = builder
        self.calls = ToolCalls(builder, callees, allowed, parallel)
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.service_tier: str | None = None
        self.done = False  # has the server said that this was all?
        self._logprobs = logprobs
        self._finish_required = finish_required
        self._heard = False  # has there been a delta with more than the role?
        self._legacy_call = False  # calls come in `function_call`, not in `tool_calls`
        self._cited: set[str] = set()

    def feed(self, chunk: Chunk) -> None:
        if chunk is DONE:
            self.done = True
            return
        usage = chunk.get("usage")
        if not usage and (groq := chunk.get("x_groq")):
            usage = groq.get("usage") if isinstance(groq, dict) else None
        if usage:
            self._count(usage)
        choice = _first(chunk.get("choices"))
        if choice is None:
            return  # the chunk carries usage only, or a gateway's remarks
        if usage := choice.get("usage"):  # Moonshot has it there
            self._count(usage)
        delta = choice.get("delta")
        if delta is None and not self._heard and "delta" not in choice:
            delta = choice.get("message")  # all at once; MiniMax repeats it at the end of a stream
        if isinstance(delta, dict):
            self._heard = self._heard or any(value for name, value in delta.items() if name != "role")
            if delta.keys() == _TEXT_ALONE:
                self._feed_content(delta["content"], choice)
            else:
                self._feed_delta(delta, choice)
        if (tier := chunk.get("service_tier")) and isinstance(tier, str):
            self.service_tier = tier
        if citations := chunk.get("citations"):
            self._cite(citations)
        if reason := choice.get("finish_reason"):
            self._finish(str(reason))

    def _feed_delta(self, delta: dict[str, Any], choice: dict[str, Any]) -> None:
        """Reasoning, text and calls, in the order in which a model produces what comes together."""
        for source in REASONING_FIELDS:
            if (text := delta.get(source)) and isinstance(text, str):
                self.builder.reasoning(text, source)
                break  # gateways repeat it under several names
        else:
            text = ""
        if (details := delta.get("reasoning_details")) and isinstance(details, list):
            self._feed_details(details, shown=bool(text))
        if opaque := delta.get("reasoning_opaque"):  # Copilot's own copy of the thought, to be sent back
            self.builder.reasoning_upstream()["reasoning_opaque"] = opaque
        self._feed_content(delta.get("content"), choice)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            self.builder.refusal(refusal)
        if annotations := delta.get("annotations"):
            for annotation in flat_annotations(annotations):
                self.builder.annotation(annotation)
        if calls := delta.get("tool_calls"):
            self.calls.feed(calls)
        elif (call := delta.get("function_call")) and (self._legacy_call or not self.calls):
            self._legacy_call = True
            self.calls.feed([{"index": 0, "function": call}])

    def _feed_content(self, content: Any, choice: dict[str, Any]) -> None:
        if isinstance(content, str):
            if content:
                logprobs = choice.get("logprobs") if self._logprobs else None
                self.builder.text(content, flat_logprobs(logprobs) if logprobs else None)
            return
        for part in content if isinstance(content, list) else ():
            text, thought = _part_text(part)
            if thought:
                self.builder.reasoning(thought, "reasoning_content")
            if text:
                self.builder.text(text)

    def _feed_details(self, details: list[Any], shown: bool) -> None:
        """OpenRouter's structured reasoning: told only where the delta has no plain text, always kept for replay."""
        for text in ReasoningDetails.texts(details) if not shown else ():
            self.builder.reasoning(text, "reasoning_details")
        said = self.builder.reasoning_upstream()
        kept = said.get("reasoning_details")
        if not isinstance(kept, ReasoningDetails):
            kept = said["reasoning_details"] = ReasoningDetails()
        kept.feed(details)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.usage = usage

    def _cite(self, citations: Any) -> None:
        """Perplexity lists the sources of the whole answer, again in every chunk."""
        for url in citations if isinstance(citations, list) else ():
            if isinstance(url, str) and url not in self._cited:
                self._cited.add(url)
                self.builder.annotation(
                    {"type": "url_citation", "url": url, "start_index": 0, "end_index": 0, "title": url}
                )

    def _finish(self, reason: str) -> None:
        # It comes on every chunk, twice, or with two values: the first that is not `stop` says most.
        if self.finish_reason in (None, "stop"):
            self.finish_reason = reason

    @property
    def ended(self) -> str | None:
        """
        How the answer ended: `completed`, `max_output_tokens`, `content_filter`, `error`; None: it was broken off.

        What was seen counts for more than what was said: a call whose arguments stop in the middle was cut, even
        where the server says `tool_calls` or `stop`.
        """
        if self.finish_reason is None and (self._finish_required or not self.done):
            return None
        meaning = FINISH.get((self.finish_reason or "").lower(), "completed")
        return "max_output_tokens" if meaning == "completed" and self.calls.cut else meaning


_FIRST = (0, None, "0")


def _first(choices: Any) -> dict[str, Any] | None:
    """Return the choice of index 0; a gateway may send others although one was asked for."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index") in _FIRST:
            return choice
    return None


def _part_text(part: Any) -> tuple[str, str]:
    """Return the text and the thought of a content part: Mistral and Databricks send thoughts as parts."""
    if isinstance(part, str):
        return part, ""
    if not isinstance(part, dict):
        return "", ""
    if part.get("type") in ("thinking", "reasoning"):
        inner = part.get("thinking") or part.get("summary") or part.get("text") or ""
        parts = [{"text": inner}] if isinstance(inner, str) else inner if isinstance(inner, list) else []
        return "", "".join(_part_text(one)[0] for one in parts if isinstance(one, dict))
    text = part.get("text")
    return (text if isinstance(text, str) else ""), ""
