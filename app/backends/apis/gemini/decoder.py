"""Decode Gemini bodies. The last event has a `finishReason`, instead of an end marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.backends.apis.api_decoder import APIDecoder, BodyDecoder, ErrorIn, flat_annotations, flat_logprobs
from app.backends.apis.filters import filters
from app.backends.apis.gemini.conversation import CALL_ID, SIGNATURE, SIGNED_PARTS, THOUGHT_SIGNATURE
from app.backends.server.errors.classification import failure
from app.core.bounded_json import dumps
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest
from app.core.request.reasoning import bound
from app.core.sse.decoder import END, EventDecoder
from app.core.sse.repeats import ServerEvent
from app.core.types import JSONMapping, JSONObject, json_list, json_object, json_objects, json_text
from app.core.types.deltas import (
    AnnotationsAdded,
    AnswerMetadata,
    CitedSource,
    Delta,
    Finished,
    FinishReason,
    NativeItem,
    ProviderFields,
    ReasoningSummaryDelta,
    SourcesCited,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    UsageReported,
)
from app.core.usage import is_token_count, reported_count, token_count
from app.errors import quote

# Others are errors, for example MALFORMED_FUNCTION_CALL.
_FINISH_REASONS = {
    "STOP": FinishReason.STOP,
    **dict.fromkeys(("MAX_TOKENS", "CONTINUATION"), FinishReason.LENGTH),
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
            *("MODEL_ARMOR", "ESCALATION", "PUP_LIMITED_DISABLED"),
        ),
        FinishReason.CONTENT_FILTER,
    ),
}
_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
_NOT_OUTPUT = (AnswerMetadata, UsageReported)
_TIERS = {"standard": "default", "flex": "flex", "priority": "priority"}


class GeminiDecoder(APIDecoder):
    def __init__(self, encoded: EncodedRequest, profile: Profile, error_in: ErrorIn) -> None:
        super().__init__(BodyDecoder(list, EventDecoder()), error_in, filters(profile, encoded.body))
        self._profile = profile
        self._calls = 0
        self._items = 0
        self._code: JSONObject | None = None
        self._open_kind = ""  # "text" or "thought"; "" for others
        self._texts: list[str] = []
        self._signed: list[JSONObject] = []
        self._usage: JSONMapping = {}
        self._grounding: JSONMapping = {}
        self._citations: list[JSONObject] = []

    def _read(self, events: list[ServerEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if event is END:  # sent by other implementations
                self.done = self.finished
            elif isinstance(event, dict) and event.get("error"):
                self.failure = self._error_in(event) or failure("failure")
                break
            elif isinstance(event, dict):
                self._begun = True
                was_finished, read = self.finished, self._response(event)
                self.resumed |= was_finished and any(not isinstance(delta, _NOT_OUTPUT) for delta in read)
                deltas += read
        return deltas

    def _response(self, response: JSONMapping) -> list[Delta]:
        candidates = json_objects(response.get("candidates"))
        candidate = next((each for each in candidates if not each.get("index")), {})
        self._usage = json_object(response.get("usageMetadata")) or self._usage
        self._grounding = json_object(candidate.get("groundingMetadata")) or self._grounding
        cited = json_object(candidate.get("citationMetadata"))
        self._citations += json_objects(cited.get("citationSources")) or json_objects(cited.get("citations"))
        logprobs = _logprobs(json_object(candidate.get("logprobsResult")))
        deltas: list[Delta] = []
        for part in json_objects(json_object(candidate.get("content")).get("parts")):
            deltas += self._part(part, logprobs)
            logprobs = None
        if ending := _ending(candidate, json_object(response.get("promptFeedback"))):
            return [*deltas, *self._finish(*ending, response)]
        if self.finished and "usageMetadata" in response:
            deltas += self._reported_usage()
        return deltas

    def _part(self, part: JSONObject, logprobs: list[JSONObject] | None) -> list[Delta]:
        if isinstance(text := part.get("text"), str):
            return self._thought(text, part) if part.get("thought") else self._text(text, part, logprobs)
        self._begin_item("")
        for name, read in _PARTS.items():
            if isinstance(value := part.get(name), dict):
                return read(self, value, part)
        if names := sorted(part.keys() - {THOUGHT_SIGNATURE, "thought"}):
            self._warn(f"Content of unknown type {quote(names[0])} from the backend was ignored.")
        return []

    def _begin_item(self, kind: str) -> bool:
        """Whether the part begins a new item."""
        if self._open_kind == kind:
            return False
        self._open_kind, self._signed = kind, []
        if kind == "text":
            self._texts = []
        return True

    def _text(self, text: str, part: JSONObject, logprobs: list[JSONObject] | None) -> list[Delta]:
        signed = bool(part.get(THOUGHT_SIGNATURE))
        if not text and (not signed or self._open_kind not in ("text", "thought")):
            return []  # empty parts end the stream
        deltas: list[Delta] = []
        if text:
            self._begin_item("text")
            self._texts.append(text)
            deltas.append(TextDelta([text], logprobs))
        return [*deltas, self._signed_part(part)] if signed else deltas

    def _thought(self, text: str, part: JSONObject) -> list[Delta]:
        is_new, signed = self._begin_item("thought"), bool(part.get(THOUGHT_SIGNATURE))
        deltas: list[Delta] = [ReasoningSummaryDelta(text)] if text else []
        if signed:
            return [*deltas, self._signed_part(part)]
        # Bind unsigned reasoning too, so that omitting it later causes no warning.
        return [*deltas, ProviderFields(bound(self._profile))] if is_new and deltas else deltas

    def _signed_part(self, part: JSONObject) -> Delta:
        self._signed.append(part)
        fields = bound(self._profile, **{SIGNED_PARTS: [*self._signed]})
        return ProviderFields(fields, "message" if self._open_kind == "text" else "reasoning")

    def _call(self, call: JSONObject, part: JSONObject) -> list[Delta]:
        index, self._calls = self._calls, self._calls + 1
        call_id, name = json_text(call.get("id")), json_text(call.get("name"))
        signature = part.get(THOUGHT_SIGNATURE)
        sent = {CALL_ID: call_id, SIGNATURE: signature}
        fields = {name: value for name, value in sent.items() if value}
        arguments = dumps(json_object(call.get("args"))).decode()
        extra = bound(self._profile, **fields) if fields else None
        return [ToolCallDelta(index, call_id or None, name, [arguments], extra)]

    def _image(self, blob: JSONObject, part: JSONObject) -> list[Delta]:
        kind, _, form = json_text(blob.get("mimeType")).partition("/")
        if kind != "image":
            self._warn(f"Content of unknown type {quote(kind)} from the backend was ignored.")
            return []
        if part.get("thought"):  # a draft
            return []
        item = {"type": "image_generation_call", "status": "completed", "result": json_text(blob.get("data"))}
        return self._native({**item, "output_format": form}, {**item, "status": "in_progress", "result": None})

    def _native(self, item: JSONObject, started: JSONObject) -> list[Delta]:
        number, self._items = self._items, self._items + 1
        return [NativeItem(number, started), NativeItem(number, item, done=True)]

    def _code_begun(self, code: JSONObject, part: JSONObject) -> list[Delta]:
        ended = self._end_code("incomplete", None)
        self._code = {"type": "code_interpreter_call", "code": json_text(code.get("code")), "container_id": "gemini"}
        return ended

    def _code_result(self, result: JSONObject, part: JSONObject) -> list[Delta]:
        status = "completed" if result.get("outcome") == "OUTCOME_OK" else "failed"
        return self._end_code(status, [{"type": "logs", "logs": json_text(result.get("output"))}])

    def _end_code(self, status: str, outputs: list[JSONObject] | None) -> list[Delta]:
        item, self._code = self._code, None
        if item is None:
            return []
        started = {**item, "status": "in_progress", "outputs": None}
        return self._native({**item, "status": status, "outputs": outputs}, started)

    def _finish(self, reason: str, finish: FinishReason, response: JSONMapping) -> list[Delta]:
        first, self.finished = not self.finished, True
        deltas = self._end_code("incomplete", None)
        if first:
            deltas += self._cited()
        if finish in (FinishReason.CONTENT_FILTER, FinishReason.ERROR):
            self._warn(f"The backend ended the answer for the reason {quote(reason)}.")
        answer_id, model = (json_text(response.get(name)) or None for name in ("responseId", "modelVersion"))
        tier = _TIERS.get(json_text(self._usage.get("serviceTier")).lower())
        deltas += [AnswerMetadata(answer_id, model, tier), *self._reported_usage()]
        return [*deltas, Finished(finish)]

    def _cited(self) -> list[Delta]:
        """Annotations with positions require an open message."""
        if self._open_kind == "text" and (found := citations("".join(self._texts), self._grounding, self._citations)):
            return [AnnotationsAdded(found)]
        pages = filter(None, map(_page, json_objects(self._grounding.get("groundingChunks"))))
        sources = [CitedSource(url=page["url"], title=page["title"]) for page in pages]
        return [SourcesCited(sources)] if sources else []

    def _reported_usage(self) -> list[Delta]:
        usage = response_usage(self._usage)
        return [UsageReported(usage)] if usage else []


_PARTS = {
    "functionCall": GeminiDecoder._call,
    "inlineData": GeminiDecoder._image,
    "executableCode": GeminiDecoder._code_begun,
    "codeExecutionResult": GeminiDecoder._code_result,
}


def _ending(candidate: JSONMapping, feedback: JSONMapping) -> tuple[str, FinishReason] | None:
    """Google's reason and ours; None if the answer continues."""
    reason = json_text(candidate.get("finishReason"))
    if reason and reason != _UNSPECIFIED:
        return reason, _FINISH_REASONS.get(reason, FinishReason.ERROR)
    blocked = json_text(feedback.get("blockReason"))
    return (blocked, FinishReason.CONTENT_FILTER) if blocked and not candidate else None


def response_usage(usage: JSONMapping) -> TokenCounts | None:
    """Usage in OpenAI's form: thoughts are output, tool results are input. None without counts."""
    if not any(is_token_count(usage.get(name)) for name in ("promptTokenCount", "candidatesTokenCount")):
        return None
    thoughts = reported_count(usage.get("thoughtsTokenCount")) or 0
    prompt = token_count(usage.get("promptTokenCount")) + token_count(usage.get("toolUsePromptTokenCount"))
    output = token_count(usage.get("candidatesTokenCount")) + thoughts
    return TokenCounts(prompt, output, token_count(usage.get("cachedContentTokenCount")), 0, thoughts)


def _logprobs(result: JSONMapping) -> list[JSONObject] | None:
    chosen, tops = json_objects(result.get("chosenCandidates")), json_list(result.get("topCandidates"))
    tokens: list[JSONObject] = []
    for index, token in enumerate(chosen):
        top = json_object(tops[index]).get("candidates") if index < len(tops) else None
        tokens.append({**_logprob(token), "top_logprobs": [*map(_logprob, json_objects(top))]})
    return flat_logprobs(tokens) or None


def _logprob(token: JSONMapping) -> JSONObject:
    return {"token": token.get("token"), "logprob": token.get("logProbability")}


_WEB = ("https://", "http://")


def citations(text: str, grounding: JSONMapping, cited: Iterable[JSONMapping]) -> list[JSONObject]:
    found = [*_supports(text, grounding)]
    for citation in cited:
        url, span = json_text(citation.get("uri")), _span(text, citation)
        if span and url.startswith(_WEB):
            found.append({"type": "url_citation", "url": url, "title": json_text(citation.get("title")) or url, **span})
    return [*flat_annotations(found)]


def _supports(text: str, grounding: JSONMapping) -> Iterator[JSONObject]:
    pages = [*map(_page, json_list(grounding.get("groundingChunks")))]
    for support in json_objects(grounding.get("groundingSupports")):
        span = _span(text, json_object(support.get("segment")))
        for index in json_list(support.get("groundingChunkIndices")):
            if span and isinstance(index, int) and 0 <= index < len(pages) and (page := pages[index]):
                yield {"type": "url_citation", **page, **span}


def _page(chunk: object) -> JSONObject | None:
    fields = json_object(chunk)
    for kind in ("web", "retrievedContext", "maps"):
        page = json_object(fields.get(kind))
        if (url := json_text(page.get("uri"))).startswith(_WEB):
            return {"url": url, "title": json_text(page.get("title")) or url}
    return None


def _span(text: str, segment: JSONMapping) -> JSONObject | None:
    """A segment in UTF-8 bytes as positions in characters; None if it is not in the text."""
    start, end = segment.get("startIndex") or 0, segment.get("endIndex")
    quoted = json_text(segment.get("text"))
    if isinstance(start, int) and isinstance(end, int) and 0 <= start < end:
        encoded = text.encode(errors="replace")
        before, inner = (encoded[begin:stop].decode(errors="replace") for begin, stop in ((0, start), (start, end)))
        if end <= len(encoded) and (not quoted or inner == quoted):
            return {"start_index": len(before), "end_index": len(before) + len(inner)}
    if quoted and (at := text.find(quoted)) >= 0:  # offsets relative to another part
        return {"start_index": at, "end_index": at + len(quoted)}
    return None
