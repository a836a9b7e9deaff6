"""
Read Chat Completions chunks into an `EventBuilder`.

What all servers do somewhat differently is settled here; what one provider does is settled at the backend's edge,
before a chunk comes this way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson

from app.core.stream.annotations import cited, flat_annotations, flat_logprobs
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import ToolBinding
from app.core.stream.reasoning_fragments import ReasoningDetails, ThinkingBlocks
from app.core.stream.tool_calls import ToolCalls

Chunk: TypeAlias = dict[str, Any]

# What a backend yields for `data: [DONE]`: the server said that this was all.
DONE: Chunk = {"object": "done"}

# The names of raw reasoning: DeepSeek, llama.cpp and SGLang have the first, vLLM, Ollama and OpenRouter the second,
# Copilot the third.
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")

# The fields that have it in fragments: what puts them together, and what they are told as.
_FRAGMENTS: dict[str, tuple[type[ReasoningDetails] | type[ThinkingBlocks], str]] = {
    "reasoning_details": (ReasoningDetails, "reasoning_details"),
    "thinking_blocks": (ThinkingBlocks, "reasoning_content"),  # LiteLLM's copy of Claude's thoughts
}

# What a finish reason means, where it is not that the model was done. Any other word means just that.
FINISH = {
    **dict.fromkeys(
        (
            *("length", "max_tokens", "model_length", "model_context_window_exceeded"),
            "time_limit",  # watsonx
        ),
        "max_output_tokens",
    ),
    **dict.fromkeys(
        (
            *("content_filter", "sensitive", "safety", "recitation", "prohibited_content", "blocklist", "spii"),
            *("language", "model_armor"),
            *("refusal", "guardrail_intervened"),  # Claude's own words, and Bedrock's
        ),
        "content_filter",
    ),
    **dict.fromkeys(
        (
            "error",
            "network_error",
            "insufficient_system_resource",
            "abort",
            "cancelled",  # watsonx
            # Gemini, and gateways before it: the model wrote a call that cannot be read, and is not shown.
            *("function_call_filter", "malformed_function_call", "unexpected_tool_call"),
        ),
        "error",
    ),
}


NO_REASON = "null"  # as KoboldCpp wrote in every chunk

_TEXT_ALONE = {"content"}  # what nearly every delta has


class ChunkReader:
    """
    Follows one Chat Completions stream: feed it the chunks as they arrive, then ask how it `ended`.

    `callees` to `parallel` and `hosted_left` to `call_ids` are those of `ToolCalls`; `logprobs` says whether the
    caller asked for them, `finish_required` that this server never ends without a finish reason unless it broke.
    """

    def __init__(
        self,
        builder: EventBuilder,
        callees: Mapping[str, ToolBinding] = MappingProxyType({}),
        *,
        allowed: frozenset[str] | None = None,
        parallel: bool = True,
        logprobs: bool = False,
        finish_required: bool = False,
        hosted_left: int | None = None,
        forbidden: Collection[str] = frozenset(),
        call_ids: set[str] | None = None,
    ) -> None:
        self.builder = builder
        self.calls = ToolCalls(builder, callees, allowed, parallel, hosted_left, forbidden, call_ids)
        self._first = len(builder.response["output"])  # of the items of this answer
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.service_tier: str | None = None
        self.done = False  # has the server said that this was all?
        self._logprobs = logprobs
        self._finish_required = finish_required
        self._heard = False  # has there been a delta with more than the role?
        self._legacy_call = False  # calls come in `function_call`, not in `tool_calls`
        self._sources: dict[str, dict[str, Any]] = {}  # by their addresses, for which there is no text yet
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
        if (tier := chunk.get("service_tier")) and isinstance(tier, str):
            self.service_tier = tier
        choice = _first(chunk.get("choices"))
        if choice is None:
            self._cite(chunk.get("citations"), chunk.get("search_results"))
            return  # the chunk carries usage only, or a gateway's remarks
        if usage := choice.get("usage"):  # Moonshot has it there
            self._count(usage)
        delta = choice.get("delta")
        if not delta and not self._heard and "message" in choice:
            delta = choice.get("message")  # all at once; MiniMax repeats it at the end of a stream
        if isinstance(delta, dict):
            self._heard = self._heard or any(value for name, value in delta.items() if name != "role")
            if delta.keys() == _TEXT_ALONE:
                self._feed_content(delta["content"], choice)
            else:
                self._feed_delta(delta, choice)
        if (citations := chunk.get("citations")) or "search_results" in chunk or self._sources:
            self._cite(citations, chunk.get("search_results"))
        if (reason := choice.get("finish_reason")) and reason != NO_REASON:
            self._finish(str(reason), choice.get("native_finish_reason"))

    def _feed_delta(self, delta: dict[str, Any], choice: dict[str, Any]) -> None:
        """Reasoning, text and calls, in the order in which a model produces what comes together."""
        for source in REASONING_FIELDS:
            if (text := delta.get(source)) and isinstance(text, str):
                self.builder.reasoning(text, source)
                break  # gateways repeat it under several names
        else:
            text = ""
        for name in _FRAGMENTS:
            if (fragments := delta.get(name)) and isinstance(fragments, list):
                self._feed_fragments(name, fragments, shown=bool(text))
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
                if self.calls.waits:
                    self.calls.settle()
                logprobs = choice.get("logprobs") if self._logprobs else None
                self.builder.text(content, flat_logprobs(logprobs) if logprobs else None)
            return
        if content is None:
            return
        if isinstance(content, int | float) or (isinstance(content, dict) and content.get("type") not in _PARTS):
            # Workers AI writes `7` where "7" is meant, and what a schema was given for as an object.
            if not isinstance(content, bool):
                self._feed_content(orjson.dumps(content).decode(), choice)
            return
        for part in content if isinstance(content, list) else [content]:
            text, thought = _part_text(part)
            if thought:
                self.builder.reasoning(thought, "reasoning_content")
            if text:
                self.builder.text(text)

    def _feed_fragments(self, name: str, fragments: list[Any], shown: bool) -> None:
        """Reasoning in fragments: told only where the delta has no plain text, always kept to be sent back."""
        kind, source = _FRAGMENTS[name]
        for text in kind.texts(fragments) if not shown else ():
            self.builder.reasoning(text, source)
        said = self.builder.reasoning_upstream()
        kept = said.get(name)
        if not isinstance(kept, kind):
            kept = said[name] = kind()
        kept.feed(fragments)

    def _count(self, usage: Any) -> None:
        """
        Keep what is said last of each count.

        Claude's gateways say those of the input first and those of the output last, with zeros for the other; and some
        end with a chunk of zeros.
        """
        if isinstance(usage, dict):
            self.usage = usage if not self.usage else self.usage | {name: n for name, n in usage.items() if n}

    def _cite(self, citations: Any, results: Any) -> None:
        """
        Tell the sources of the whole answer, once there is a text that they can be of.

        Perplexity lists them again in every chunk, xAI in the last one.
        """
        for source in cited(citations, results):
            self._sources.setdefault(source["url"], source)
        output = self.builder.response["output"]
        if not output or output[-1]["type"] != "message":
            return
        for url, source in self._sources.items():
            if url not in self._cited:
                self._cited.add(url)
                self.builder.annotation(source)
        self._sources.clear()

    def _finish(self, reason: str, native: Any) -> None:
        # It comes on every chunk, twice, or with two values: the first that is not `stop` says most.
        if self.finish_reason in (None, "stop"):
            # OpenRouter says `stop` of what a provider's `network_error` or `MALFORMED_FUNCTION_CALL` ended.
            told = reason == "stop" and isinstance(native, str) and native.lower() in FINISH
            self.finish_reason = native if told else reason

    @property
    def ended(self) -> str | None:
        """
        How the answer ended: `completed`, `max_output_tokens`, `content_filter`, `error`; None: it was broken off.

        What was seen counts for more than what was said: a call whose arguments stop in the middle was cut, even
        where the server says `tool_calls` or `stop`; and `[DONE]` alone, behind nothing at all, is no answer.
        """
        whole = self.done and len(self.builder.response["output"]) > self._first and not self._finish_required
        if self.finish_reason is None and not whole:
            return None
        # Gemini adds what exactly it was: `content_filter: RECITATION`.
        word, _, _ = (self.finish_reason or "").lower().partition(":")
        meaning = FINISH.get(word, "completed")
        return "max_output_tokens" if meaning == "completed" and self.calls.cut else meaning


_FIRST = (0, None, "0")
_PARTS = frozenset({"text", "output_text", "thinking", "reasoning", "reference", "image_url", "audio", "tool_use"})


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
