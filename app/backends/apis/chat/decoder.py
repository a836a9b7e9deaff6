"""Decode Chat Completions into deltas. Profile options cover what cannot be detected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import zip_longest
from typing import Any

from app.backends.apis.api_decoder import NO_ANSWER, APIDecoder, BodyDecoder, ErrorIn, flat_annotations, flat_logprobs
from app.backends.apis.chat.usage import normal_usage
from app.backends.apis.filters import filters
from app.backends.server.errors import error_in_chunk
from app.core.bounded_json import dumps
from app.core.profile import Profile, ResponseOptions
from app.core.request.model_request import EncodedRequest
from app.core.sse.decoder import END, EventDecoder
from app.core.sse.repeats import PatternMatcher, RawEvent, ReadTexts, RepeatedEvent, ServerEvent
from app.core.stream.reasoning_fields import FRAGMENTS
from app.core.types import JSONObject, json_list, json_object, json_objects, json_text
from app.core.types.deltas import (
    REASONING_CONTENT,
    AnnotationsAdded,
    AnswerMetadata,
    CitedSource,
    Delta,
    Finished,
    FinishReason,
    ProviderFields,
    ReasoningDelta,
    RefusalDelta,
    SourcesCited,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    UsageReported,
)
from app.errors import BackendError

_NO_OUTPUT = (AnswerMetadata, UsageReported, SourcesCited, Finished)


class ChatDecoder(APIDecoder):
    def __init__(self, encoded: EncodedRequest, profile: Profile, error_in: ErrorIn) -> None:
        self._reader = ChunkReader(profile.response)
        repeats = PatternMatcher(self._reader.find_text)
        super().__init__(
            BodyDecoder(completion_chunks, EventDecoder(repeats)), error_in, filters(profile, encoded.body), repeats
        )

    def _read(self, events: list[ServerEvent]) -> list[Delta]:
        begun, self._begun = self._begun, True
        deltas: list[Delta] = []
        for event in events:
            if isinstance(event, RepeatedEvent):
                self.resumed = self.resumed or self.finished
                if delta := event.read(event.texts):
                    deltas.append(delta)
            elif event is END:
                self.done = True
            else:
                read = self._reader.read(event)
                if self._reader.may_fail and (error := self._error_in(event)):
                    self.failure, self.done = error, False
                    if begun or deltas:  # otherwise another server may answer
                        deltas += (delta for delta in read if isinstance(delta, UsageReported))
                    break
                if self.finished and not all(isinstance(delta, _NO_OUTPUT) for delta in read):
                    self.resumed = True
                self.finished = self._reader.finished
                deltas += read
        return deltas


def completion_chunks(values: list[JSONObject]) -> list[RawEvent]:
    """A completion as a chunk and `END`; raises `BackendError`."""
    chunks = [_as_chunk(value) for value in values]
    if not any(chunk.get("choices") for chunk in chunks):
        raise next(filter(None, map(error_in_chunk, chunks)), None) or BackendError(NO_ANSWER)
    return [*chunks, END]


def _as_chunk(completion: JSONObject) -> RawEvent:
    if "choices" not in completion:  # Cline and Workers AI wrap the completion
        wrapped = (completion.get(name) for name in ("data", "result"))
        completion = next((value for value in wrapped if isinstance(value, dict) and value.get("choices")), completion)
    if not isinstance(completion.get("choices"), list):
        return completion
    choices = []
    for choice in completion["choices"]:
        if isinstance(choice, dict) and "message" in choice and not choice.get("delta"):
            choice = {**choice, "delta": choice["message"]}
        choices.append(choice)
    return {**completion, "choices": choices}


# DeepSeek, llama.cpp and SGLang; vLLM, Ollama and OpenRouter; Copilot.
REASONING_FIELDS = (REASONING_CONTENT, "reasoning", "reasoning_text")

_FINISH_REASONS = {
    **dict.fromkeys(("tool_calls", "function_call"), FinishReason.TOOL_CALLS),
    **dict.fromkeys(
        (
            *("length", "max_tokens", "model_length", "model_context_window_exceeded"),
            "time_limit",  # watsonx
        ),
        FinishReason.LENGTH,
    ),
    **dict.fromkeys(
        (
            *("content_filter", "sensitive", "safety", "recitation", "prohibited_content", "blocklist", "spii"),
            *("language", "model_armor"),
            *("refusal", "guardrail_intervened"),  # Claude, Bedrock
        ),
        FinishReason.CONTENT_FILTER,
    ),
    **dict.fromkeys(
        (
            "error",
            "network_error",
            "insufficient_system_resource",
            "abort",
            "cancelled",  # watsonx
            # Gemini and its gateways: the model wrote an invalid call, which is not returned.
            *("function_call_filter", "malformed_function_call", "unexpected_tool_call"),
        ),
        FinishReason.ERROR,
    ),
}
_NO_REASON = "null"  # KoboldCpp sends it in every chunk

_USAGE_CHUNK = frozenset({"id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint"})
_FIRST = (0, None, "0")  # spellings of index 0
_BESIDE_TEXT = frozenset({*FRAGMENTS, "reasoning_opaque", "refusal", "annotations", "tool_calls", "function_call"})


@cache
def _beside_text(reasoning_fields: tuple[str, ...]) -> frozenset[str]:
    return _BESIDE_TEXT.union(reasoning_fields)


class ChunkReader:
    def __init__(self, options: ResponseOptions) -> None:
        self._options = options
        self._beside_text = _beside_text(options.reasoning_fields)
        self.finished = False
        self.may_fail = False  # whether the last chunk can contain an error
        self._usage: JSONObject | None = None
        self._has_output = False  # not only a role
        self._has_call = False
        self._legacy_call = False
        self._cited: set[str] = set()
        self._metadata: tuple[object, ...] | None = None

    def read(self, chunk: RawEvent) -> list[Delta]:
        deltas: list[Delta] = []
        metadata = (chunk.get("id"), chunk.get("model"), chunk.get("service_tier"))
        if metadata != self._metadata:
            self._metadata = metadata
            answer_id, model, service_tier = metadata
            deltas.append(AnswerMetadata(_text(answer_id), _text(model), _text(service_tier)))
        choices: Any = chunk.get("choices") or []
        is_single = type(choices) is list and len(choices) == 1 and type(choices[0]) is dict
        if choices and (not is_single or choices[0].get("index")):  # nearly never
            choices = self._choices(choices)
        beside = None
        self.may_fail = "error" in chunk or "x_groq" in chunk
        if choices:
            beside = choices[0].get("usage")
            self.may_fail = self.may_fail or "error" in choices[0]
        elif not chunk.keys() <= _USAGE_CHUNK or chunk.get("object") == "error":
            self.may_fail = True
        if (chunk.get("usage") or beside or "x_groq" in chunk) and (usage := self._count(chunk, beside)):
            deltas.append(UsageReported(usage))
        for choice in choices:
            delta: Any = choice.get("delta")
            text = delta.get("content") if type(delta) is dict else None
            if text and type(text) is str and self._beside_text.isdisjoint(delta):  # nearly always
                self._has_output = True
                deltas.append(TextDelta([text], _logprobs(choice)))
            elif (delta or not self._has_output) and (delta := self._delta_of(choice)):
                deltas += self._read_delta(delta, choice)
            if choice.get("finish_reason") and (reason := self._finish(choice)):
                self.finished = True
                # vLLM and SGLang report the stop sequence, or a token id.
                stop = choice.get("stop_reason", choice.get("matched_stop"))
                deltas.append(Finished(reason, stop if isinstance(stop, str) else None))
        if ("citations" in chunk or "search_results" in chunk) and (sources := [*self._sources(chunk)]):
            deltas.append(SourcesCited(sources))
        return deltas

    def find_text(self, chunk: RawEvent) -> tuple[str, ReadTexts] | None:
        """See `PatternMatcher`."""
        choices = chunk.get("choices")
        if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
            return None
        delta = choice.get("delta")
        if not delta or type(delta) is not dict:
            return None
        names = [name for name in delta if delta[name] and name != "role"]
        if not names or (self._options.choice_index == "strict" and choice.get("index") not in _FIRST):
            return None
        if chunk.get("usage") or "error" in chunk or "x_groq" in chunk or "citations" in chunk:
            return None
        if "search_results" in chunk or "error" in choice or choice.get("finish_reason") or choice.get("usage"):
            return None
        if choice.get("logprobs"):
            return None
        if names == ["tool_calls"] and _are_arguments(delta["tool_calls"]):
            return "arguments", partial(ToolCallDelta, delta["tool_calls"][0].get("index"), None, None)
        if len(names) != 1 or type(delta[names[0]]) is not str:
            return None
        field = names[0]
        if field in self._options.reasoning_fields:
            return field, partial(ReasoningDelta, field=_sent_back(field))
        return (field, TextDelta) if field == "content" else None

    def _choices(self, choices: object) -> list[JSONObject]:
        """TGI counts tokens in the index, Copilot splits an answer over two choices, others send extra choices."""
        found, which = json_objects(choices), self._options.choice_index
        if which == "strict":
            found = [choice for choice in found if choice.get("index") in _FIRST]
        return found if which == "merge" else found[:1]

    def _count(self, chunk: RawEvent, beside: object) -> TokenCounts | None:
        """
        Usage so far: each count's last nonzero value.

        Gateways to Claude send input counts first and output counts last; some end with zeros. Groq reports usage in
        `x_groq`, Moonshot in the choice (`beside`).
        """
        usage = chunk.get("usage")
        if not usage and "x_groq" in chunk and isinstance(groq := chunk["x_groq"], dict):
            usage = groq.get("usage")
        if not (usage or beside):
            return None
        for reported in (usage, beside):
            if reported and isinstance(reported, dict):
                if self._usage:
                    reported = self._usage | {name: count for name, count in reported.items() if count}
                self._usage = reported
        return normal_usage(self._usage) if self._usage else None

    def _sources(self, chunk: RawEvent) -> Iterator[CitedSource]:
        """Perplexity lists all sources in every chunk, xAI in the last."""
        for source in _cited(chunk.get("citations"), chunk.get("search_results")):
            if source["url"] not in self._cited:
                self._cited.add(source["url"])
                yield source

    def _delta_of(self, choice: JSONObject) -> JSONObject:
        delta = choice.get("delta")
        if not delta and not self._has_output and "message" in choice:
            delta = choice.get("message")  # MiniMax repeats the message at the end of a stream
        if not delta or not isinstance(delta, dict):
            return {}
        content = delta.get("content")
        has_content = content or type(content) in (int, float, dict)  # `_content` also yields 0 and empty objects
        if not (has_content or any(value for name, value in delta.items() if name != "role")):
            return {}
        self._has_output = True
        return delta

    def _finish(self, choice: JSONObject) -> FinishReason | None:
        reason = choice.get("finish_reason")
        if not reason or reason == _NO_REASON:
            return None
        reason = self._options.finish_map.get(str(reason), str(reason))
        native = choice.get("native_finish_reason")
        # OpenRouter reports a provider's `network_error` or `MALFORMED_FUNCTION_CALL` as `stop`.
        if reason == "stop" and isinstance(native, str) and native.lower() in _FINISH_REASONS:
            reason = native
        # Gemini adds details: `content_filter: RECITATION`.
        return _FINISH_REASONS.get(reason.lower().partition(":")[0], FinishReason.STOP)

    def _read_delta(self, delta: JSONObject, choice: JSONObject) -> Iterator[Delta]:
        """Reasoning, text, then calls: the model's generation order."""
        yield from self._reasoning(delta)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                yield TextDelta([content], _logprobs(choice))
        else:
            yield from _content(content, choice)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            yield RefusalDelta(refusal)
        if annotations := [*flat_annotations(delta.get("annotations"))]:
            yield AnnotationsAdded(annotations)
        yield from self._calls(delta)

    def _reasoning(self, delta: JSONObject) -> Iterator[Delta]:
        """Gateways repeat reasoning under several names."""
        fields = ((name, delta.get(name)) for name in self._options.reasoning_fields)
        field, text = next(((name, text) for name, text in fields if text and isinstance(text, str)), ("", ""))
        if text:
            yield ReasoningDelta([text], _sent_back(field))
        for name, joiner in FRAGMENTS.items():
            if (fragments := delta.get(name)) and isinstance(fragments, list):
                texts = [] if text else [*joiner.texts(fragments)]
                if texts and name == "thinking_blocks":  # LiteLLM's copy of Claude's reasoning
                    yield ReasoningDelta(texts)
                    texts = []
                yield ReasoningDelta(texts, name, fragments, joiner)
        if opaque := delta.get("reasoning_opaque"):  # Copilot's encrypted copy
            yield ProviderFields({"reasoning_opaque": opaque})

    def _calls(self, delta: JSONObject) -> Iterable[ToolCallDelta]:
        if calls := delta.get("tool_calls"):
            fragments = json_objects([calls] if isinstance(calls, dict) else calls)
            self._has_call = self._has_call or bool(fragments)
            return map(_call, fragments)
        if (call := delta.get("function_call")) and (self._legacy_call or not self._has_call):
            self._legacy_call = True
            return [_call({"index": 0, "function": call})]
        return ()


def _sent_back(field: str) -> str:
    return field if field in REASONING_FIELDS else REASONING_CONTENT


_PARTS = frozenset({"text", "output_text", "thinking", "reasoning", "reference", "image_url", "audio", "tool_use"})


def _content(content: object, choice: JSONObject) -> Iterator[Delta]:
    """Mistral and Databricks send reasoning as parts."""
    if content is None or isinstance(content, bool):
        return
    if isinstance(content, int | float) or (isinstance(content, dict) and str(content.get("type")) not in _PARTS):
        # Workers AI sends `7` for "7", and structured output as an object.
        yield TextDelta([dumps(content).decode()], _logprobs(choice))
        return
    for part in content if isinstance(content, list) else [content]:
        text, thought = _part_text(part)
        if thought:
            yield ReasoningDelta([thought])
        if text:
            yield TextDelta([text])


def _part_text(part: object) -> tuple[str, str]:
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


def _are_arguments(calls: object) -> bool:
    if type(calls) is not list or len(calls) != 1 or type(call := calls[0]) is not dict:
        return False
    if call.get("id") or "extra_content" in call or type(call.get("index", 0)) is not int:
        return False
    function = call.get("function")
    if type(function) is not dict or type(function.get("arguments")) is not str or not function["arguments"]:
        return False
    return not any(value for name, value in function.items() if name != "arguments")


def _call(fragment: JSONObject) -> ToolCallDelta:
    function = fragment.get("function")
    if not isinstance(function, dict):
        function = fragment  # Workers AI puts name and arguments at the top level
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else dumps(arguments).decode()
    # Gemini's signature for reasoning before the call.
    extra = {"extra_content": fragment["extra_content"]} if fragment.get("extra_content") else None
    call_id, name = _text(fragment.get("id")), _text(function.get("name"))
    return ToolCallDelta(_index(fragment.get("index")), call_id, name, [arguments] if arguments else [], extra)


def _index(value: object) -> int | None:
    """Some servers send a string or a float."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _cited(citations: object, results: object) -> Iterator[CitedSource]:
    """`results` are Perplexity's `search_results`, which add titles."""
    by_url = {result["url"]: result for result in json_objects(results) if isinstance(result.get("url"), str)}
    for entry in citations if isinstance(citations, list) and citations else by_url.values():
        source = (
            entry if isinstance(entry, dict) else by_url.get(entry, {"url": entry}) if isinstance(entry, str) else {}
        )
        if isinstance(url := source.get("url"), str) and url:
            yield {"url": url, "title": str(source.get("title") or url)}


def _logprobs(choice: JSONObject) -> list[JSONObject] | None:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    return flat_logprobs(json_objects(logprobs.get("content")) or _listed(logprobs)) or None


def _listed(logprobs: dict[str, object]) -> list[JSONObject]:
    """Together lists logprobs in the form of legacy completions."""
    tokens, values, tops = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(values, list)):
        return []
    return [
        {
            "token": token,
            "logprob": value,
            "top_logprobs": [{"token": other, "logprob": each} for other, each in json_object(top).items()],
        }
        for token, value, top in zip_longest(tokens, values[: len(tokens)], json_list(tops)[: len(tokens)])
    ]
