"""
Make a conversation shorter, by a summary that stands for it.

A compaction is a response like any other, but the model is asked for a summary, and the output is one item that holds
it, sealed: `{"type": "compaction", "encrypted_content": "antiphon1...."}`. It is requested by an item of type
`compaction_trigger` at the end of the input, or at `POST /responses/compact`.

With `context_management` it happens within any response: where a prompt is longer than `compact_threshold`, the item
with the summary is added to the output first, and the model then answers the shorter conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.history.compaction import TRIGGER, messages_kept
from app.core.history.turns import input_item
from app.core.stream.event_builder import EventBuilder, Upstream
from app.core.types.request import CreateResponse, Item, Model, Response, TextOptions
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

# The share of the threshold that a compaction has to be able to save: messages of the user are never summarized, and
# where these alone pass the threshold, a summary each time would cost more than it saves.
_WORTHWHILE = 0.1


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """When and how to compact a conversation within a response."""

    threshold: int  # tokens of a prompt
    seal: Callable[[dict[str, Any]], str]  # makes the `encrypted_content` of the item from the summary

    def is_worthwhile(self, tokens: int) -> bool:
        """Return whether to compact where so many tokens would be summarized."""
        return tokens >= self.threshold * _WORTHWHILE


class CompactResponse(CreateResponse):
    """`CompactResponseMethodPublicBody` of the spec; what else a request may have is taken, too."""

    model: Model

    def triggering(self) -> CompactResponse:
        """Return it as a request for a response that is kept nowhere."""
        update = {"input": [*self.items(), {"type": TRIGGER}], "store": False, "stream": False, "background": False}
        return self.model_copy(update=update)


def summary_request(request: CreateResponse, items: Sequence[Item], prompt: str) -> tuple[CreateResponse, list[Item]]:
    """Return the request that asks the model for a summary, and the items that it is asked with, for `to_chat`."""
    # The tools that items bring are still there to be called.
    plain = {"tools": [], "tool_choice": "none", "text": TextOptions(), "include": [], "top_logprobs": None}
    asked = request.model_copy(update=plain)
    return asked, [*items, {"type": "message", "role": "user", "content": prompt or PROMPT}]


class CompactionBuilder(EventBuilder):
    """
    The state machine of a compaction: what the model says is the summary, and becomes one item when it is complete.

    A summary that was cut for want of room says so and is used: the conversation is too long to be summarized again,
    and would be lost.
    """

    def __init__(
        self, response: Response, *, new_id: Callable[[str], str], seal: Callable[[dict[str, Any]], str]
    ) -> None:
        super().__init__(response, new_id=new_id)
        self._seal_summary = seal
        self._pieces: list[str] = []

    def text(self, *deltas: str, logprobs: list[Any] | None = None) -> None:
        self._pieces += deltas

    def refusal(self, *deltas: str) -> None:
        pass

    def annotation(self, annotation: dict[str, Any]) -> None:
        pass

    def reasoning(self, *deltas: str, source: str = "reasoning_content") -> None:
        pass

    def reasoning_upstream(self) -> Upstream:
        return {}

    def complete(self) -> None:
        summary = "".join(self._pieces).strip()
        if not summary:
            self.fail(BackendError("The model wrote no summary.", type="model_error", code="model_error"))
            return
        content = {"summary": summary}
        id = self.new_id("cmp")
        item: Item = {"type": "compaction", "id": id, "encrypted_content": "", "status": "in_progress"}
        self.upstream[id] = content
        index = self._add(item)
        self._done(index, {**item, "encrypted_content": self._seal_summary(content), "status": "completed"})
        super().complete()

    def incomplete(self, reason: str) -> None:
        if reason == "max_output_tokens" and self._pieces:
            self._pieces.append(_CUT)
            self.complete()
        else:
            super().incomplete(reason)


def resource(response: Response, items: Sequence[Item], key: str) -> dict[str, Any]:
    """
    Return the answer of `POST /responses/compact`, of a compaction that has ended and the conversation it stands for.

    Its output is "a list of all user messages, followed by a single compaction item", to be sent as it is; other
    messages to the model are kept like the user's. Raises `BackendError` where there is no summary.
    """
    if response["status"] != "completed":
        details = response["incomplete_details"]
        reason = details["reason"] if details else "model_error"
        raise BackendError("The model's summary is not complete.", type="model_error", code=reason)
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*(input_item(item, key) for item in messages_kept(items)), *response["output"]],
        "usage": response["usage"],
    }
