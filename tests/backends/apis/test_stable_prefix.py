"""Each turn's request begins with the previous turn's request, so servers hit their prompt cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.backends.apis import APIS, encode
from app.core.profile import Profile
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse

FOUND = [
    {"type": "function", "name": "hear", "description": "Hear.", "defer_loading": True},
    {"type": "namespace", "name": "nose", "tools": [{"type": "function", "name": "smell", "defer_loading": True}]},
    {"type": "function", "name": "dance"},
]
TOOLS = [
    {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "look"}]},
    {"type": "custom", "name": "patch"},
    {"type": "tool_search", "execution": "client"},
    *FOUND[:2],
]
IMAGE = {"type": "input_image", "image_url": "https://a.test/b.png"}

profiles = st.fixed_dictionaries(
    {
        "transport.api": st.sampled_from([*APIS]),
        "request.cache": st.just("off"),
        "request.roles.developer": st.sampled_from(["system", "developer", "user"]),
        "request.roles.system": st.sampled_from(["any", "first_only", "single_first", "user"]),
        "request.roles.alternate": st.booleans(),
        "request.roles.user_after_tool": st.sampled_from(["ok", "bridge"]),
        "request.content.parts": st.sampled_from(["string", "array"]),
        "request.content.tool_images": st.sampled_from(["hoist", "inline", "drop"]),
        # `current_turn` is left out: it removes earlier reasoning from the prompt by definition.
        "request.reasoning_replay": st.sampled_from(["tool_turns", "never", "always"]),
        "request.tool_ids": st.sampled_from(["verbatim", "^[A-Za-z0-9]{9}$"]),
        "request.native_tools": st.sampled_from([[], ["custom", "namespace"]]),
    }
).map(Profile().override)


def extended(before: dict[str, Any], after: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list from the earlier request; its last message may have more content in the later request."""
    entries: list[dict[str, Any]] = [*before.get(name, [])]
    grown = after.get(name, [])[len(entries) - 1 : len(entries)]
    for field_name, holds in _GROWING.items():
        if entries and grown and (content := entries[-1].get(field_name)) and holds(entries[-1]):
            more = grown[0].get(field_name)
            if parts(more)[: len(parts(content))] == parts(content):
                entries[-1] = {**entries[-1], field_name: more}
    return entries


# Lists that may grow at the end, by a field of the message or tool.
_GROWING: dict[str, Callable[[dict[str, Any]], bool]] = {
    "content": lambda message: message.get("role") == "user",
    "parts": lambda content: content["role"] == "user",
    "functionDeclarations": lambda tool: True,
}


def parts(content: Any) -> list[Any]:
    """Return content as a list: parts, or the paragraphs of a text, since merged messages are joined by blank lines."""
    return (
        content.split("\n\n")
        if isinstance(content, str)
        else [part.get("text", part) if part.get("type") == "text" else part for part in content]
    )


@dataclass
class Conversation:
    """A conversation of client and model turns; each request is compared with the previous request."""

    data: st.DataObject
    profile: Profile
    tools: list[dict[str, Any]]
    items: list[dict[str, Any]] = field(default_factory=list)
    due: list[dict[str, Any]] = field(default_factory=list)  # calls without an output
    undecided: list[dict[str, Any]] = field(default_factory=list)  # requests for approval
    last: dict[str, Any] | None = None

    def draw(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def id(self, kind: str) -> str:
        return f"{kind}_{len(self.items)}"

    def say(self, role: str, content: Any) -> None:
        self.items.append({"type": "message", "role": role, "content": content})

    def start(self) -> None:
        for role in self.draw([], ["developer"], ["system", "developer"], ["developer", "system"]):
            self.say(role, f"Be {role}.")

    def note(self) -> None:
        if role := self.draw(None, None, "developer", "system"):
            self.say(role, f"Note {len(self.items)}.")

    def client(self) -> None:
        """Add the client's part: results or decisions, or else a message, with notes in between."""
        answered = bool(self.due)
        for call in self.due:
            self.note()
            self.items.append(self.output(call))
        self.due = []
        for request in [*self.undecided]:
            if (approve := self.draw(None, True, False)) is not None:
                answered = True
                self.decide(request, approve)
        self.note()
        if not answered or self.draw(False, False, True):
            picture = [IMAGE, {"type": "input_text", "text": "See?"}]
            self.say("user", self.draw(f"ModelRequest {len(self.items)}?", picture))
            self.note()

    def output(self, call: dict[str, Any]) -> dict[str, Any]:
        kind, call_id = call["type"], call["call_id"]
        if kind == "tool_search_call":
            found = self.draw([], FOUND[:1], FOUND[1:2], FOUND[2:])
            return {"type": "tool_search_output", "call_id": call_id, "tools": found}
        return {"type": f"{kind}_output", "call_id": call_id, "output": self.draw("Done.", [IMAGE])}

    def decide(self, request: dict[str, Any], approve: bool) -> None:
        self.undecided.remove(request)
        fields = {"approval_request_id": request["id"], "approve": approve}
        self.items.append({"type": "mcp_approval_response", "id": self.id("mcpr"), **fields})
        if approve:
            fields = {"approval_request_id": request["id"], "server_label": "lab", "name": "add", "arguments": "{}"}
            self.items.append({"type": "mcp_call", "id": self.id("mcp"), **fields, "output": "3"})

    def model(self) -> None:
        """Add the model's part: hosted calls with results, then client calls or a text."""
        while self.draw(False, False, True):
            self.think()
            hosted = {"type": "mcp_call", "id": self.id("mcp"), "server_label": "lab", "name": "add", "arguments": "{}"}
            self.items.append({**hosted, "output": self.draw("3", "4")})
            self.check()
        self.think()
        answer = self.draw("text", "text", "calls", "calls", "approval", "text and call")
        if answer.startswith("text"):
            self.say("assistant", f"Answer {len(self.items)}.")
        if answer.endswith("calls"):
            self.call()
        if answer.endswith(("calls", "call")):
            self.call()
        if answer == "approval":
            request = {"type": "mcp_approval_request", "id": self.id("mcpr"), "server_label": "lab", "name": "add"}
            self.items.append({**request, "arguments": "{}"})
            self.undecided.append(self.items[-1])

    def think(self) -> None:
        if self.draw(False, True):
            thought = [{"type": "reasoning_text", "text": "Hm."}]
            self.items.append({"type": "reasoning", "id": self.id("rs"), "summary": [], "content": thought})

    def call(self) -> None:
        fields = {"call_id": self.id("call")}
        made = {
            "look": {"type": "function_call", "namespace": "ns", "name": "look", "arguments": "{}"},
            "patch": {"type": "custom_tool_call", "name": "patch", "input": "x"},
            "search": {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}},
        }
        self.items.append({**made[self.draw(*made)], **fields})
        self.due.append(self.items[-1])

    def check(self) -> None:
        """Encode the conversation's request, and compare it with the previous request."""
        fields = {"model": "m", "instructions": "Be kind.", "tools": self.tools, "input": self.items}
        request = CreateResponse.model_validate(fields)
        body = encode(ModelRequest(request, request.items(), "m"), self.profile).body
        if self.last:
            for name in ("messages", "input", "contents", "tools"):
                assert body.get(name, [])[: len(self.last.get(name, []))] == extended(self.last, body, name)
            for name in ("system", "instructions", "systemInstruction"):
                assert body.get(name) == self.last.get(name)
        self.last = body


@settings(max_examples=150)
@given(data=st.data(), profile=profiles, tools=st.sampled_from([TOOLS, TOOLS[:2]]))
def test_request_of_each_turn_begins_with_that_of_the_turn_before(
    data: st.DataObject, profile: Profile, tools: list[dict[str, Any]]
) -> None:
    conversation = Conversation(data, profile, tools)
    conversation.start()
    for _ in range(data.draw(st.integers(2, 5))):
        conversation.client()
        conversation.check()
        conversation.model()
