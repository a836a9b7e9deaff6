"""
Shorten a conversation by replacing it with a summary.

A compaction is a response whose model writes a summary, and whose output is one item with the encrypted summary:
`{"type": "compaction", "encrypted_content": "antiphon1...."}`. It is requested with an item of type
`compaction_trigger` at the end of the input, or at `POST /responses/compact`.

With `context_management`, any response can include one: if the prompt is longer than `compact_threshold`, the item is
added to the output first, and the model then answers the shorter conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import ConfigDict

from app.core.history.compaction import TRIGGER, messages_kept
from app.core.history.turns import input_item
from app.core.stream.event_builder import EventBuilder, Upstream
from app.core.types import JSONObject
from app.core.types.request import CreateResponse, Item, Response, TextOptions
from app.errors import BackendError

PROMPT = """\
The conversation above is about to be continued by someone who has not seen it. All they will have of it is what you \
write now, and the messages of the user. Write a summary that lets them go on as if they had been there.

Keep, as exactly as it was said:
- what the user wants, what was agreed on or decided, and why;
- instructions, constraints and preferences that still hold;
- facts, names, numbers, identifiers, paths, commands, addresses and code that may be needed again;
- what was done, what tools returned that matters, and what went wrong and how it was dealt with;
- what remains to be done, what was about to be done next, and questions that are open.

Leave out small talk and what has been superseded. A summary from before that stands above goes into yours. Call no \
tools, and do not answer or continue the conversation: write the summary, and nothing else.\
"""
_CUT = "\n[This summary was cut off here.]"

# The share of the threshold that a compaction has to save. User messages are never summarized; if they alone exceed the
# threshold, a summary each time would cost more than it saves.
_WORTHWHILE = 0.1


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """When and how to compact a conversation within a response."""

    threshold: int  # tokens of a prompt
    encrypt: Callable[[JSONObject], str]  # encrypts the summary as the item's `encrypted_content`

    def is_worthwhile(self, tokens: int) -> bool:
        """Return whether to compact if so many `tokens` would be summarized."""
        return tokens >= self.threshold * _WORTHWHILE


class CompactResponse(CreateResponse):
    """`CompactResponseMethodPublicBody` of the spec; all other fields of a request are accepted as well."""

    model_config = ConfigDict(defer_build=True)

    model: str

    def triggering(self) -> CompactResponse:
        """Return the request with a compaction trigger, for a response that is not stored."""
        update = {"input": [*self.items(), {"type": TRIGGER}], "store": False, "stream": False, "background": False}
        return self.model_copy(update=update)


def summary_request(request: CreateResponse, items: Sequence[Item], prompt: str) -> tuple[CreateResponse, list[Item]]:
    """Return the request for a summary and its items, for a question."""
    # `tool_choice` also disables tools that are declared in items.
    plain = {"tools": [], "tool_choice": "none", "text": TextOptions(), "include": [], "top_logprobs": None}
    return request.model_copy(update=plain), [*items, {"type": "message", "role": "user", "content": prompt or PROMPT}]


class CompactionBuilder(EventBuilder):
    """
    Builds the events of a compaction: the model's text is the summary, which becomes one item when it is complete.

    A summary that is truncated by `max_output_tokens` is used, with a note of that: otherwise the conversation, which
    is too long already, could not continue.
    """

    def __init__(
        self,
        response: Response,
        *,
        new_id: Callable[[str], str],
        encrypt: Callable[[JSONObject], str],
        progress: bool = False,
    ) -> None:
        """`progress`: whether the item is added with the first text, and events tell that the summary is written."""
        super().__init__(response, new_id=new_id)
        self._encrypt_summary = encrypt
        self._progress = progress
        self._pieces: list[str] = []
        self._item: Item | None = None  # once it was added
        self._index = 0

    def texts(self, deltas: Sequence[str], logprobs: list[object] | None = None) -> None:
        self._pieces += deltas
        if self._progress and (self._item or self._summary):
            item = self._item or self._add_item()
            self._emit("response.compaction.compacting", item_id=item["id"], output_index=self._index)

    def refusal(self, *deltas: str) -> None:
        pass

    def annotation(self, annotation: dict[str, object]) -> None:
        pass

    def reasoning(self, *deltas: str, source: str = "reasoning_content") -> None:
        pass

    def reasoning_upstream(self) -> Upstream:
        return {}

    def complete(self) -> None:
        if not self._summary:
            self.fail(BackendError("The model wrote no summary.", error_type="model_error", code="model_error"))
            return
        if self._item is None:
            self._add_item()
        super().complete()

    def incomplete(self, reason: str) -> None:
        if reason == "max_output_tokens" and self._pieces:
            self._pieces.append(_CUT)
            self.complete()
        else:
            super().incomplete(reason)

    def close(self, status: str = "completed") -> None:
        """End the item, if it was added; the summary so far is in it, also if it is not complete."""
        if item := self._item:
            self._item = None
            if status != "completed":
                self._pieces.append(_CUT)
            content: JSONObject = {"summary": self._summary}
            self.upstream[item["id"]] = content
            self._done(self._index, {**item, "encrypted_content": self._encrypt_summary(content), "status": status})
        super().close(status)

    @property
    def _summary(self) -> str:
        text = "".join(self._pieces)
        self._pieces = [text]
        return text.strip()

    def _add_item(self) -> Item:
        self._item = {"type": "compaction", "id": self.new_id("cmp"), "encrypted_content": "", "status": "in_progress"}
        self._index = self._add(self._item)
        return self._item


def resource(response: Response, items: Sequence[Item], key: str) -> dict[str, object]:
    """
    Return the result of `POST /responses/compact` for a finished compaction and the `items` that it summarizes.

    Its output is "a list of all user messages, followed by a single compaction item", to be sent unchanged; system and
    developer messages stay as well. Raises `BackendError` if there is no summary.
    """
    if response["status"] != "completed":
        details = response["incomplete_details"]
        reason = details["reason"] if details else "model_error"
        raise BackendError("The model's summary is not complete.", error_type="model_error", code=reason)
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*(input_item(item, key) for item in messages_kept(items)), *response["output"]],
        "usage": response["usage"],
    }
