"""
Normalises the chunks of all servers before they reach the core.

Differences that need no option of a profile are handled here, the others by the filters before. `app.core.types.chunk`
defines the normal form.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TypeGuard

from app.backends.apis.chat.usage import normal_usage
from app.core.bounded_json import dumps
from app.core.json_values import json_list, json_objects, json_text
from app.core.stream.reasoning_fragments import FRAGMENTS
from app.core.types import JSONObject
from app.core.types.chunk import (
    REASONING_CONTENT,
    CallFragment,
    Chunk,
    ChunkDelta,
    ChunkOrRun,
    ChunkRun,
    CitedSource,
    RawChunk,
    RawOrRun,
)

# The fields of raw reasoning: the first is that of DeepSeek, llama.cpp and SGLang, the second that of vLLM, Ollama and
# OpenRouter, the third Copilot's.
REASONING_FIELDS = (REASONING_CONTENT, "reasoning", "reasoning_text")

# OpenAI's word for each finish reason that does not mean that the answer is complete.
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
            *("refusal", "guardrail_intervened"),  # Claude's and Bedrock's
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
            # Gemini, and its gateways: the model wrote an invalid call, which is not returned.
            *("function_call_filter", "malformed_function_call", "unexpected_tool_call"),
        ),
        "error",
    ),
}
NO_REASON = "null"  # KoboldCpp sent it in every chunk

_FIRST = (0, None, "0")  # the index of the only choice, as servers write it
_TEXTS = frozenset({"content", REASONING_CONTENT, "refusal"})  # of a delta
_OWN_NAMES = frozenset({"reasoning_field", "reasoning_fragments", "reasoning_upstream"})  # of the normal form only
_OTHER_NAMES = frozenset({*REASONING_FIELDS[1:], *FRAGMENTS, *_OWN_NAMES, "reasoning_opaque", "function_call"})
_ODD_FIELDS = frozenset({"error", "x_groq", "citations", "search_results", "sources"})  # of a chunk
_ENVELOPE = ("id", "model", "service_tier")


class Normalizer:
    """Normalises the chunks of one answer; most of them are in the normal form already."""

    def __init__(self) -> None:
        self._usage: JSONObject | None = None
        self._has_output = False  # has there been a delta with more than the role?
        self._has_call = False  # has there been a call in `tool_calls`?
        self._legacy_call = False  # calls are in `function_call`
        self._cited: set[str] = set()
        self.plain: RawChunk | None = None  # what the last run in normal form is like

    def feed(self, chunks: list[RawOrRun]) -> list[ChunkOrRun]:
        """Return the chunks in normal form."""
        normal: list[ChunkOrRun] = []
        for chunk in chunks:
            if isinstance(chunk, ChunkRun):
                normal += [chunk] if self.is_plain([chunk]) else self._normalized_run(chunk)
            elif self._is_plain(chunk):
                self._has_output = True
                normal.append(chunk)  # type: ignore[arg-type]  # plain
            else:
                normal += self._normalized(chunk)
        return normal

    def is_plain(self, chunks: list[RawOrRun]) -> TypeGuard[list[ChunkOrRun]]:
        """
        Return whether all chunks are only pieces of text, reasoning or calls, in normal form.

        Errors, finish reasons, usage and sources are not.
        """
        for chunk in chunks:
            if isinstance(chunk, ChunkRun):
                if chunk.like is self.plain:
                    continue
                if not self._is_plain(chunk.like):
                    return False
                self.plain = chunk.like
            elif not self._is_plain(chunk):
                return False
        self._has_output = self._has_output or bool(chunks)
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
            return True  # nearly always
        has_output = False
        for name, value in delta.items():
            if not value or name == "role":
                continue
            if name in _TEXTS:
                if type(value) is not str:
                    return False
                has_output = True
            elif name == "tool_calls":
                if not _are_plain_calls(value):
                    return False
                has_output = self._has_call = True
            elif name in _OTHER_NAMES:
                return False
        return has_output

    def _normalized(self, chunk: RawChunk) -> Iterator[Chunk]:
        choice = _first_choice(chunk.get("choices"))
        normal: Chunk = {name: chunk[name] for name in _ENVELOPE if name in chunk}  # type: ignore[assignment]
        if (usage := self._count(chunk, choice)) is not None:
            normal["usage"] = usage
        if ("citations" in chunk or "search_results" in chunk) and (sources := [*self._sources(chunk)]):
            normal["sources"] = sources
        if choice is None:
            yield normal  # usage, or a gateway's own data
            return
        last: ChunkDelta = {}
        if delta := self._delta_of(choice):
            *deltas, last = self._deltas(delta)
            for earlier in deltas:
                yield {"choices": [{"delta": earlier}]}
        normal["choices"] = [{"delta": last, "finish_reason": _finish(choice)}]
        if logprobs := _logprobs(choice):
            normal["choices"][0]["logprobs"] = logprobs
        yield normal

    def _normalized_run(self, run: ChunkRun) -> Iterator[ChunkOrRun]:
        if run.field in REASONING_FIELDS:
            delta: ChunkDelta = {"reasoning_content": run.texts[0]}
            chunk = {**run.like, "choices": [{"delta": delta}]}
            if self.is_plain([chunk]):
                delta["reasoning_field"] = run.field
                yield ChunkRun(chunk, REASONING_CONTENT, run.texts)
                return
        yield from self.feed([*run.chunks()])

    def _count(self, chunk: RawChunk, choice: dict[str, object] | None) -> JSONObject | None:
        """
        Return the usage so far, with the last value of each count, if a chunk has any; None otherwise.

        Claude's gateways send the counts of the input first and those of the output last, with zeros for the other;
        some end with a chunk of zeros. Groq has the usage in `x_groq`, Moonshot in the choice.
        """
        usage, beside = chunk.get("usage"), choice.get("usage") if choice else None
        if not usage and isinstance(groq := chunk.get("x_groq"), dict):
            usage = groq.get("usage")
        if not (usage or beside):
            return None
        for reported in (usage, beside):
            if reported and isinstance(reported, dict):
                counts = {name: count for name, count in reported.items() if count}
                self._usage = reported if not self._usage else self._usage | counts
        return normal_usage(self._usage) if self._usage else None

    def _sources(self, chunk: RawChunk) -> Iterator[CitedSource]:
        """Yield new sources: Perplexity lists all of them in every chunk, xAI in the last."""
        for source in _cited(chunk.get("citations"), chunk.get("search_results")):
            if source["url"] not in self._cited:
                self._cited.add(source["url"])
                yield source

    def _delta_of(self, choice: dict[str, object]) -> JSONObject:
        delta = choice.get("delta")
        if not delta and not self._has_output and "message" in choice:
            delta = choice.get("message")  # the whole message; MiniMax repeats it at the end of a stream
        if not isinstance(delta, dict) or not _has_fields(delta):
            return {}
        self._has_output = True
        return delta

    def _deltas(self, delta: JSONObject) -> Iterator[ChunkDelta]:
        """Yield the deltas of one delta, in the order in which a model generates them: reasoning, text, calls."""
        normal: ChunkDelta = {}
        field, reasoning = _reasoning(delta)
        if reasoning:
            normal["reasoning_content"] = reasoning
            if field != REASONING_CONTENT:
                normal["reasoning_field"] = field
        for name, source in _TEXT_FIELDS.items():
            if (fragments := delta.get(name)) and isinstance(fragments, list):
                for text in () if reasoning else FRAGMENTS[name].texts(fragments):
                    yield {"reasoning_content": text, "reasoning_field": source}
                normal.setdefault("reasoning_fragments", {})[name] = fragments
        if opaque := delta.get("reasoning_opaque"):  # Copilot's encrypted copy of the reasoning
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

    def _calls(self, delta: JSONObject) -> list[CallFragment]:
        if calls := delta.get("tool_calls"):
            calls = [calls] if isinstance(calls, dict) else calls
            fragments = json_objects(calls)
            self._has_call = self._has_call or bool(fragments)
            return [*map(_fragment, fragments)]
        if (call := delta.get("function_call")) and (self._legacy_call or not self._has_call):
            self._legacy_call = True
            return [_fragment({"index": 0, "function": call})]
        return []


def _has_fields(delta: JSONObject) -> bool:
    """Return whether a delta has more than the role. `_content` makes text of 0 and of an empty object, too."""
    has_any = any(value for name, value in delta.items() if name != "role")
    return has_any or type(delta.get("content")) in (int, float, dict)


def _first_choice(choices: object) -> JSONObject | None:
    """Return the choice with index 0; a gateway may send others although one was requested."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index") in _FIRST:
            return choice
    return None


def _finish(choice: dict[str, object]) -> str | None:
    reason = choice.get("finish_reason")
    if not reason or reason == NO_REASON:
        return None
    native = choice.get("native_finish_reason")
    # OpenRouter reports a provider's `network_error` or `MALFORMED_FUNCTION_CALL` as `stop`.
    word = native if reason == "stop" and isinstance(native, str) and native.lower() in FINISH else str(reason)
    # Gemini adds details: `content_filter: RECITATION`.
    return FINISH.get(word.lower().partition(":")[0], word)


# The field name under which the text of fragments is passed on; `thinking_blocks` is LiteLLM's copy of Claude's.
_TEXT_FIELDS = {"reasoning_details": "reasoning_details", "thinking_blocks": REASONING_CONTENT}


def _reasoning(delta: JSONObject) -> tuple[str, str]:
    """Return the name and text of the field with plain reasoning; gateways repeat it under several names."""
    for name in REASONING_FIELDS:
        if (text := delta.get(name)) and isinstance(text, str):
            return name, text
    return "", ""


_PARTS = frozenset({"text", "output_text", "thinking", "reasoning", "reference", "image_url", "audio", "tool_use"})


def _content(content: object) -> str | list[ChunkDelta]:
    """Return text, or the deltas of content in parts: Mistral and Databricks send reasoning as parts."""
    if content is None or isinstance(content, str | bool):
        return json_text(content)
    if isinstance(content, int | float) or (isinstance(content, dict) and str(content.get("type")) not in _PARTS):
        # Workers AI sends `7` for "7", and structured output as an object.
        return dumps(content).decode()
    deltas: list[ChunkDelta] = []
    for part in content if isinstance(content, list) else [content]:
        text, thought = _part_text(part)
        if thought:
            deltas.append({"reasoning_content": thought})
        if text:
            deltas.append({"content": text})
    return deltas


def _part_text(part: object) -> tuple[str, str]:
    """Return the text and the reasoning of a content part."""
    if isinstance(part, str):
        return part, ""
    if not isinstance(part, dict):
        return "", ""
    if part.get("type") in ("thinking", "reasoning"):
        inner = part.get("thinking") or part.get("summary") or part.get("text") or ""
        parts = [{"text": inner}] if isinstance(inner, str) else inner if isinstance(inner, list) else []
        return "", "".join(_part_text(inner_part)[0] for inner_part in parts if isinstance(inner_part, dict))
    text = part.get("text")
    return json_text(text), ""


def _are_plain_calls(calls: object) -> bool:
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


def _fragment(fragment: dict[str, object]) -> CallFragment:
    function = fragment.get("function")
    function = (
        function if isinstance(function, dict) else fragment
    )  # Workers AI has name and arguments at the top level
    normal: CallFragment = {
        "index": _index(fragment.get("index")),
        "id": _text(fragment.get("id")),
        "function": {"name": _text(function.get("name")), "arguments": _arguments(function.get("arguments"))},
    }
    if extra := fragment.get("extra_content"):  # Gemini's signature of the reasoning before the call
        normal["upstream"] = {"extra_content": extra}
    return normal


def _index(value: object) -> int | None:
    """Return an index, which some servers write as a string or a float."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else dumps(value).decode()


def _cited(citations: object, results: object) -> Iterator[CitedSource]:
    """
    Yield the sources that a server lists with an answer: URLs, or objects with a `url`.

    `results` are Perplexity's `search_results`, which have the titles, and replace `citations`.
    """
    by_url = {result["url"]: result for result in json_objects(results) if isinstance(result.get("url"), str)}
    for entry in citations if isinstance(citations, list) and citations else by_url.values():
        source = (
            entry if isinstance(entry, dict) else by_url.get(entry, {"url": entry}) if isinstance(entry, str) else {}
        )
        if isinstance(url := source.get("url"), str) and url:
            yield {"url": url, "title": str(source.get("title") or url)}


def _is_plain_logprobs(logprobs: object) -> bool:
    content = logprobs.get("content") if type(logprobs) is dict else None
    return type(content) is list and bool(content) and type(content[0]) is dict


def _logprobs(choice: dict[str, object]) -> JSONObject | None:
    """Return a choice's logprobs in OpenAI's form: `content`, with an object for each token."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    return logprobs if json_objects(logprobs.get("content")) else {"content": _listed(logprobs)}


def _listed(logprobs: dict[str, object]) -> list[JSONObject]:
    """Return logprobs from parallel lists, the form of legacy completions, which Together uses."""
    tokens, values, tops = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(values, list)):
        return []
    return [
        {"token": token, "logprob": value, "top_logprobs": _ranked(top)}
        for token, value, top in zip_longest(tokens, values[: len(tokens)], json_list(tops)[: len(tokens)])
    ]


def _ranked(top: object) -> list[JSONObject]:
    return [{"token": token, "logprob": value} for token, value in top.items()] if isinstance(top, dict) else []
