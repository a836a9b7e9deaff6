"""
One form for the chunks of all servers: what each does in its own way ends here, before a chunk reaches the core.

What needs no option of a profile is known here; the rest is done by the filters before. See `app.core.types.chunk` for
the form.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, TypeGuard

import orjson

from app.backends.chat.usage import normal_usage
from app.core.stream.reasoning_fragments import FRAGMENTS
from app.core.types.chunk import REASONING_CONTENT, CallFragment, Chunk, ChunkDelta, ChunkRun, CitedSource, RawChunk

# The names of raw reasoning: DeepSeek, llama.cpp and SGLang have the first, vLLM, Ollama and OpenRouter the second,
# Copilot the third.
REASONING_FIELDS = (REASONING_CONTENT, "reasoning", "reasoning_text")

# What a finish reason means, where it is not that the model was done.
FINISH = {
    **dict.fromkeys(
        (
            *("length", "max_tokens", "model_length", "model_context_window_exceeded"),
            "time_limit",  # watsonx
        ),
        "length",
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

_FIRST = (0, None, "0")  # as servers write the index of the one choice
_TEXTS = frozenset({"content", REASONING_CONTENT, "refusal"})  # of a delta
_OWN_NAMES = frozenset({"reasoning_field", "reasoning_fragments", "reasoning_upstream"})  # not a server's
_OTHER_NAMES = frozenset({*REASONING_FIELDS[1:], *FRAGMENTS, *_OWN_NAMES, "reasoning_opaque", "function_call"})
_ODD_FIELDS = frozenset({"error", "x_groq", "citations", "search_results", "sources"})  # of a chunk
_ENVELOPE = ("id", "model", "service_tier")


class Normalizer:
    """Brings the chunks of one answer into the form that the core reads; most of them have it."""

    def __init__(self) -> None:
        self._usage: dict[str, Any] | None = None
        self._heard = False  # has there been a delta with more than the role?
        self._called = False  # has there been a call in `tool_calls`?
        self._legacy_call = False  # calls come in `function_call`
        self._cited: set[str] = set()
        self._plain: RawChunk | None = None  # the last chunk that was in that form

    def feed(self, chunks: list[RawChunk]) -> list[Chunk]:
        """Return the chunks in that form: the very same list where they are."""
        if self.is_plain(chunks):
            return chunks
        return [one for chunk in chunks for one in self._normalized(chunk)]

    def is_plain(self, chunks: list[RawChunk]) -> TypeGuard[list[Chunk]]:
        """
        Return whether all chunks are pieces of text, reasoning or calls in that form, and nothing else.

        An error, an end, usage or sources are none.
        """
        for chunk in chunks:
            like = chunk.first if isinstance(chunk, ChunkRun) else chunk
            if like is not self._plain:
                if not self._is_plain(like):
                    return False
                self._plain = like
        self._heard = self._heard or bool(chunks)
        return True

    def _is_plain(self, chunk: RawChunk) -> bool:
        choices = chunk.get("choices")
        if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
            return False
        delta = choice.get("delta")
        if not delta or type(delta) is not dict or choice.get("index") not in _FIRST:
            return False
        if chunk.get("usage") or not _ODD_FIELDS.isdisjoint(chunk):
            return False
        if choice.get("finish_reason") or "error" in choice or "usage" in choice:
            return False
        if (logprobs := choice.get("logprobs")) and not _is_plain_logprobs(logprobs):
            return False
        if len(delta) == 1 and type(text := delta.get("content")) is str and text:
            return True  # as nearly always
        said = False
        for name, value in delta.items():
            if not value or name == "role":
                continue
            if name in _TEXTS:
                if type(value) is not str:
                    return False
                said = True
            elif name == "tool_calls":
                if not _are_plain_calls(value):
                    return False
                said = self._called = True
            elif name in _OTHER_NAMES:
                return False
        return said

    def _normalized(self, chunk: RawChunk) -> Iterator[Chunk]:
        if self.is_plain(plain := [chunk]):
            yield from plain
            return
        if isinstance(chunk, ChunkRun):
            yield from self._normalized_run(chunk)
            return
        choice = _first_choice(chunk.get("choices"))
        normal: Chunk = {name: chunk[name] for name in _ENVELOPE if name in chunk}  # type: ignore[assignment]
        if (usage := self._count(chunk, choice)) is not None:
            normal["usage"] = usage
        if sources := [*self._sources(chunk)]:
            normal["sources"] = sources
        if choice is None:
            yield normal  # usage, or a gateway's remarks
            return
        *deltas, last = self._deltas(self._delta_of(choice))
        for delta in deltas:
            yield {"choices": [{"delta": delta}]}
        normal["choices"] = [{"delta": last, "finish_reason": _finish(choice)}]
        if logprobs := _logprobs(choice):
            normal["choices"][0]["logprobs"] = logprobs
        yield normal

    def _normalized_run(self, run: ChunkRun) -> Iterator[Chunk]:
        if run.field in REASONING_FIELDS:
            delta: ChunkDelta = {"reasoning_content": run.texts[0]}
            chunk = {**run, "choices": [{"delta": delta}]}
            if self.is_plain([chunk]):
                delta["reasoning_field"] = run.field
                yield ChunkRun(chunk, REASONING_CONTENT, run.texts)  # type: ignore[misc]
                return
        for chunk in run.chunks():
            yield from self._normalized(chunk)

    def _count(self, chunk: RawChunk, choice: dict[str, Any] | None) -> dict[str, Any] | None:
        """
        Return the usage by now, if a chunk has any: what was said last of each count.

        Claude's gateways say those of the input first and those of the output last, with zeros for the other; and some
        end with a chunk of zeros. Groq has it in `x_groq`, Moonshot in the choice.
        """
        groq = chunk.get("x_groq")
        beside = groq.get("usage") if isinstance(groq, dict) else None
        said = [usage for usage in (chunk.get("usage") or beside, (choice or {}).get("usage")) if usage]
        for usage in said:
            if isinstance(usage, dict):
                counted = {name: count for name, count in usage.items() if count}
                self._usage = usage if not self._usage else self._usage | counted
        return normal_usage(self._usage) if said and self._usage else None

    def _sources(self, chunk: RawChunk) -> Iterator[CitedSource]:
        """Yield the sources that are new: Perplexity lists them again in every chunk, xAI in the last one."""
        for source in _cited(chunk.get("citations"), chunk.get("search_results")):
            if source["url"] not in self._cited:
                self._cited.add(source["url"])
                yield source

    def _delta_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        delta = choice.get("delta")
        if not delta and not self._heard and "message" in choice:
            delta = choice.get("message")  # all at once; MiniMax repeats it at the end of a stream
        if not isinstance(delta, dict):
            return {}
        self._heard = self._heard or _says_something(delta)
        return delta

    def _deltas(self, delta: dict[str, Any]) -> Iterator[ChunkDelta]:
        """Yield what a delta says, in the order in which a model produces what comes together."""
        normal: ChunkDelta = {}
        field, reasoning = _reasoning(delta)
        if reasoning:
            normal["reasoning_content"] = reasoning
            if field != REASONING_CONTENT:
                normal["reasoning_field"] = field
        for name, source in _TOLD_AS.items():
            if (fragments := delta.get(name)) and isinstance(fragments, list):
                for text in () if reasoning else FRAGMENTS[name].texts(fragments):
                    yield {"reasoning_content": text, "reasoning_field": source}
                normal.setdefault("reasoning_fragments", {})[name] = fragments
        if opaque := delta.get("reasoning_opaque"):  # Copilot's own copy of the thought
            normal["reasoning_upstream"] = {"reasoning_opaque": opaque}
        content = _content(delta.get("content"))
        if isinstance(content, str):
            if content:
                normal["content"] = content
        else:
            for part in content:
                if normal:
                    yield normal
                    normal = {}
                yield part
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            normal["refusal"] = refusal
        if annotations := delta.get("annotations"):
            normal["annotations"] = annotations
        if calls := self._calls(delta):
            normal["tool_calls"] = calls
        yield normal

    def _calls(self, delta: dict[str, Any]) -> list[CallFragment]:
        if calls := delta.get("tool_calls"):
            calls = [calls] if isinstance(calls, dict) else calls
            fragments = [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []
            self._called = self._called or bool(fragments)
            return [*map(_fragment, fragments)]
        if (call := delta.get("function_call")) and (self._legacy_call or not self._called):
            self._legacy_call = True
            return [_fragment({"index": 0, "function": call})]
        return []


def _says_something(delta: dict[str, Any]) -> bool:
    return any(value for name, value in delta.items() if name != "role")


def _first_choice(choices: Any) -> dict[str, Any] | None:
    """Return the choice of index 0; a gateway may send others although one was asked for."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index") in _FIRST:
            return choice
    return None


def _finish(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if not reason or reason == NO_REASON:
        return None
    native = choice.get("native_finish_reason")
    # OpenRouter says `stop` of what a provider's `network_error` or `MALFORMED_FUNCTION_CALL` ended.
    word = native if reason == "stop" and isinstance(native, str) and native.lower() in FINISH else str(reason)
    # Gemini adds what exactly it was: `content_filter: RECITATION`.
    return FINISH.get(word.lower().partition(":")[0], word)


# How the texts of fragments are told: under the name of the field, but for LiteLLM's copy of Claude's thoughts.
_TOLD_AS = {"reasoning_details": "reasoning_details", "thinking_blocks": REASONING_CONTENT}


def _reasoning(delta: dict[str, Any]) -> tuple[str, str]:
    """Return the field that has reasoning as plain text, and the text; gateways repeat it under several names."""
    for name in REASONING_FIELDS:
        if (text := delta.get(name)) and isinstance(text, str):
            return name, text
    return "", ""


_PARTS = frozenset({"text", "output_text", "thinking", "reasoning", "reference", "image_url", "audio", "tool_use"})


def _content(content: Any) -> str | list[ChunkDelta]:
    """Return text, or the deltas that content in parts amounts to: Mistral and Databricks send thoughts as parts."""
    if content is None or isinstance(content, str | bool):
        return content if isinstance(content, str) else ""
    if isinstance(content, int | float) or (isinstance(content, dict) and str(content.get("type")) not in _PARTS):
        # Workers AI writes `7` where "7" is meant, and what a schema was given for as an object.
        return orjson.dumps(content).decode()
    deltas: list[ChunkDelta] = []
    for part in content if isinstance(content, list) else [content]:
        text, thought = _part_text(part)
        if thought:
            deltas.append({"reasoning_content": thought})
        if text:
            deltas.append({"content": text})
    return deltas


def _part_text(part: Any) -> tuple[str, str]:
    """Return the text and the thought of a content part."""
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


def _are_plain_calls(calls: Any) -> bool:
    if type(calls) is not list:
        return False
    for call in calls:
        if type(call) is not dict or type(function := call.get("function")) is not dict:
            return False
        if "extra_content" in call or type(call.get("index", 0)) is not int:
            return False
        for text in (call.get("id"), function.get("name"), function.get("arguments")):
            if text is not None and type(text) is not str:
                return False
    return True


def _fragment(fragment: dict[str, Any]) -> CallFragment:
    function = fragment.get("function")
    function = function if isinstance(function, dict) else fragment  # Workers AI has name and arguments there
    normal: CallFragment = {
        "index": _index(fragment.get("index")),
        "id": _text(fragment.get("id")),
        "function": {"name": _text(function.get("name")), "arguments": _arguments(function.get("arguments"))},
    }
    if extra := fragment.get("extra_content"):  # Gemini's signature of the thought behind the call
        normal["upstream"] = {"extra_content": extra}
    return normal


def _index(value: Any) -> int | None:
    """Return an index, which some servers write as a text or with a point."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def _cited(citations: Any, results: Any) -> Iterator[CitedSource]:
    """
    Yield the sources that a server lists beside an answer: addresses, or objects that have one.

    `results` are Perplexity's `search_results`, which tell the titles, and are all that is left of `citations`.
    """
    found = {one["url"]: one for one in _objects(results) if isinstance(one.get("url"), str)}
    for one in citations if isinstance(citations, list) and citations else found.values():
        source = one if isinstance(one, dict) else found.get(one, {"url": one}) if isinstance(one, str) else {}
        if isinstance(url := source.get("url"), str) and url:
            yield {"url": url, "title": str(source.get("title") or url)}


def _is_plain_logprobs(logprobs: Any) -> bool:
    content = logprobs.get("content") if type(logprobs) is dict else None
    return type(content) is list and bool(content) and type(content[0]) is dict


def _logprobs(choice: dict[str, Any]) -> dict[str, Any] | None:
    """Return a choice's logprobs as OpenAI has them: `content`, an object for each token."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    return logprobs if _objects(logprobs.get("content")) else {"content": _listed(logprobs)}


def _listed(logprobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is in lists side by side, as before there was chat: as Together has them."""
    tokens, values, tops = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(values, list)):
        return []
    tops = tops if isinstance(tops, list) else []
    return [
        {"token": token, "logprob": value, "top_logprobs": _ranked(top)}
        for token, value, top in zip_longest(tokens, values[: len(tokens)], tops[: len(tokens)])
    ]


def _ranked(top: Any) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": value} for token, value in top.items()] if isinstance(top, dict) else []


def _objects(values: Any) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []
