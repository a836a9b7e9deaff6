"""
Replaces a conversation by a summary.

A compaction is a response with a single output item, the model's summary: `{"type": "compaction", "encrypted_content":
"antiphon1...."}`. An input item `compaction_trigger` or `POST /responses/compact` requests it. With
`context_management`, any response starts with a compaction if its prompt exceeds `compact_threshold`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from app.core.history.compaction import TRIGGER, retained_messages
from app.core.history.turns import input_item
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import OpenItem
from app.core.types import JSONObject
from app.core.types.deltas import AnswerMetadata, Delta, Finished, StreamDone, TextDelta, UsageReported
from app.core.types.request import CreateResponse, Item, Response, TextOptions
from app.errors import BackendError, missing_parameter

PROMPT = """\
Summarize the conversation above for an assistant that will continue it. The assistant will see only your summary and \
the user's messages.

Keep, as exactly as possible:
- the user's goals, agreements and decisions, with their reasons;
- instructions, constraints and preferences that still apply;
- facts, names, numbers, identifiers, paths, commands, URLs and code that can be needed again;
- completed work, important tool results, failures and their solutions;
- remaining work, the next step and open questions.

Omit small talk and superseded information. Include the content of earlier summaries. Do not call tools. Do not answer \
or continue the conversation. Write only the summary.\
"""
_CUT = "\n[Summary truncated here.]"


def triggering(request: CreateResponse) -> CreateResponse:
    """A body of `POST /responses/compact`, as a request with a trigger. Raises `InvalidRequest` without a model."""
    if request.model is None:
        raise missing_parameter("model")
    changes = {"input": [*request.items(), {"type": TRIGGER}], "store": False, "stream": False, "background": False}
    return request.model_copy(update=changes)


def summary_request(request: CreateResponse, items: Sequence[Item], prompt: str) -> tuple[CreateResponse, list[Item]]:
    # also disables tools declared in items
    plain = {"tools": [], "tool_choice": "none", "text": TextOptions(), "include": [], "top_logprobs": None}
    return request.model_copy(update=plain), [*items, {"type": "message", "role": "user", "content": prompt or PROMPT}]


class SummaryReader(DeltaReader):
    """
    Reads a summary into a single item; other output is ignored.

    A summary truncated by `max_output_tokens` is used with a note: otherwise the conversation could not continue.
    """

    def __init__(
        self,
        builder: EventBuilder,
        *rules: Any,
        encrypt: Callable[[JSONObject], str],
        progress: bool = False,
        **options: Any,
    ) -> None:
        """`progress` adds the item with the first text, followed by an event per text."""
        super().__init__(builder, *rules, **options)
        self._encrypt = encrypt
        self._progress = progress
        self._pieces: list[str] = []
        self._item: OpenItem | None = None

    def text(self, delta: TextDelta) -> None:
        self._pieces += delta.texts
        if self._progress and self.has_output:
            self.builder.native_event(self._added(), _COMPACTING)

    def leave_out(self, delta: Delta) -> None:
        """Ignore output other than text."""

    @property
    def has_output(self) -> bool:
        return bool(self._item or self._summary)

    @property
    def ended(self) -> str | None:
        ended = super().ended
        if ended == "completed" and not self.has_output:
            return "no_summary"
        return "completed" if self._truncated and self.has_output else ended

    def end(self, *, cut: bool) -> None:
        """`cut`: the summary is incomplete."""
        if cut and not self._item:
            return
        content: JSONObject = {"summary": self._summary + (_CUT if cut or self._truncated else "")}
        item = {"encrypted_content": self._encrypt(content), "status": "incomplete" if cut else "completed"}
        self.builder.end_native_item(self._added(), item, content)

    @property
    def _truncated(self) -> bool:
        return super().ended == "max_output_tokens"

    @property
    def _summary(self) -> str:
        text = "".join(self._pieces)
        self._pieces = [text]
        return text.strip()

    def _added(self) -> OpenItem:
        if self._item is None:
            self._item = self.builder.add_native_item(_STARTED)
        return self._item

    reads = MappingProxyType(
        {
            **dict.fromkeys(DeltaReader.reads, leave_out),
            TextDelta: text,
            **{about: DeltaReader.reads[about] for about in (AnswerMetadata, UsageReported, Finished, StreamDone)},
        }
    )


_STARTED: JSONObject = {"type": "compaction", "encrypted_content": "", "status": "in_progress"}
_COMPACTING: JSONObject = {"type": "response.compaction.compacting", "item_id": "", "output_index": 0}


def resource(response: Response, items: Sequence[Item], key: str) -> dict[str, object]:
    """
    The result of `POST /responses/compact`.

    Its output is "a list of all user messages, followed by a single compaction item"; system and developer messages
    stay as well. Raises `BackendError` without a summary.
    """
    if response["status"] != "completed":
        details = response["incomplete_details"]
        reason = details["reason"] if details else "model_error"
        raise BackendError("The model's summary is not complete.", error_type="model_error", code=reason)
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*(input_item(item, key) for item in retained_messages(items)), *response["output"]],
        "usage": response["usage"],
    }
