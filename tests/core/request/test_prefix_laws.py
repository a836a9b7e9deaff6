"""Messages that were made for an earlier request of a conversation are those that would be made again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backends.apis import encode
from app.backends.server.client import _json
from app.core.profile import Profile
from app.core.request.question import EncodedQuestion, Question, TranslatedPrefix
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.core.request.test_chat_request_laws import FOUND, UPSTREAM, items, profiles, tools
from tests.support.conversation import assistant, call, output, user


@dataclass
class Node:
    """A stored response: the items up to it, and what was kept of their translation."""

    items: list[dict[str, Any]]
    prefix: TranslatedPrefix | None = None
    unanswered: list[str] = field(default_factory=list)  # calls of its output


class Step(NamedTuple):
    """One request and the answer to it."""

    parent: int  # counted from the last node
    kind: str  # of its input
    odd: list[dict[str, Any]]  # its input, if it is of that kind
    calls: list[str]  # of the output; none: it is text
    named: dict[str, Any]  # more fields of the calls
    thinks: bool
    tools: list[dict[str, Any]]

    def input(self, node: Node) -> list[dict[str, Any]]:
        """Return the input of a request that continues a node."""
        outputs: list[dict[str, Any]] = [output(id) for id in node.unanswered]
        made = {
            "fits": outputs or [user("Hello!")],
            "user": [user("Never mind.")],
            "outputs and user": [*outputs, user("Go on.")],
            "one output": outputs[:1] or [user("Hello!")],
            "old output": [output("a", "seen again"), *outputs],
            "answer": [assistant("I have more."), user("Do you?")],
            "tools": [{"type": "additional_tools", "tools": FOUND[:1]}, *outputs, user("With this?")],
            "odd": self.odd,
        }[self.kind]
        return [{"type": "message", **item} if "role" in item else item for item in made]


KINDS = ["fits"] * 6 + ["user", "outputs and user", "one output", "old output", "answer", "tools"]
calls = st.sampled_from([[], [], ["a"], ["b"], ["a", "b"], ["c"], ["x" * 70]])

TAKEN = st.just([{"type": "function", "name": "ns__look"}])  # so that the function of a namespace has another name
fields = st.sampled_from([{}, {}, {}, {"namespace": "ns"}, {"async": True}])


def steps_of(kinds: list[str], odd: st.SearchStrategy[list[dict[str, Any]]]) -> st.SearchStrategy[list[Step]]:
    """Return conversations of so many kinds of input."""
    parents = st.sampled_from([0, 0, 0, 0, 0, 1, 2])
    step = st.builds(Step, parents, st.sampled_from(kinds), odd, calls, fields, st.booleans(), tools | TAKEN)
    return st.lists(step, min_size=3, max_size=12)


def translated(
    input: list[dict[str, Any]],
    before: list[dict[str, Any]],
    tools: Any,
    profile: Profile,
    prefix: TranslatedPrefix | None = None,
    shared: int = 0,
) -> EncodedQuestion | tuple[str, str | None]:
    """Return the translation of a request, or the message and the field of its refusal."""
    request = CreateResponse.model_validate({"model": "m", "input": input, "tools": tools, "instructions": "Be kind."})
    try:
        items: list[Any] = [*before, *request.items()]
        prefixes = [prefix] if prefix else []
        return encode(Question(request, items, "m", upstream=UPSTREAM, prefixes=prefixes, shared=shared), profile)
    except InvalidRequest as error:
        return error.message, error.param


def whole(translation: EncodedQuestion | tuple[str, str | None]) -> Any:
    """Return all of a translation that somebody sees."""
    if not isinstance(translation, EncodedQuestion):
        return translation
    return translation.body, translation.bindings, translation.allowed, translation.warnings


of_all_apis = st.sampled_from(
    [{}, {}, {"request.cache": "auto", "request.cache_models": ["*"]}, {"transport.api": "messages"}]
).flatmap(lambda options: profiles.map(lambda profile: profile.override(options)))


@settings(max_examples=250)
@given(steps=steps_of(KINDS, st.just([])), profile=of_all_apis)
def test_prefix_of_a_conversation_gives_the_translation_without_one(steps: list[Step], profile: Profile) -> None:
    converse(steps, profile)


@given(steps=steps_of([*KINDS, *["odd"] * 4], items.filter(bool)), profile=of_all_apis)
def test_prefix_of_an_odd_conversation_gives_the_translation_without_one(steps: list[Step], profile: Profile) -> None:
    converse(steps, profile)


def converse(steps: list[Step], profile: Profile) -> None:
    """Make the requests of a conversation, each with what the one before left, and each anew."""
    nodes = [Node([])]
    for number, step in enumerate(steps):
        node = nodes[max(0, len(nodes) - 1 - step.parent)]
        input = step.input(node)
        made = translated(input, node.items, step.tools, profile, prefix=node.prefix, shared=len(node.items))
        anew = translated(input, node.items, step.tools, profile)
        assert whole(made) == whole(anew)
        if not isinstance(made, EncodedQuestion) or not isinstance(anew, EncodedQuestion):
            continue
        assert _json(made.body) == _json(anew.body)
        node.prefix = made.prefix
        if made.prefix:
            assert made.prefix.items <= len(node.items)
        thought = [{"type": "reasoning", "id": f"rs_{number % 4}", "summary": []}] if step.thinks else []
        answer = [call(id, **step.named) for id in step.calls] or [
            {"type": "message", **assistant(f"Answer {number}.")}
        ]
        nodes.append(Node([*node.items, *input, *thought, *answer], node.prefix, step.calls))


NEXT = Step(0, "fits", [], [], {}, False, [])


def test_prefix_ends_before_an_output_that_a_later_call_may_claim() -> None:
    """Two outputs come before the calls with their id; the second call claims the second output."""
    early, calls = NEXT._replace(kind="old output"), NEXT._replace(calls=["a"])
    converse([NEXT, early, early._replace(calls=["a"]), NEXT._replace(kind="user"), NEXT, calls, NEXT], Profile())


def test_prefix_ends_before_an_output_that_repeats_a_later_one() -> None:
    """A second output for a call is that of the next call with its id, in one branch and not in the other."""
    calls, twice = NEXT._replace(calls=["a"]), NEXT._replace(kind="old output")
    converse([calls, twice, NEXT, calls, NEXT, NEXT._replace(parent=1, kind="user")], Profile())


@pytest.mark.parametrize("api", ["chat", "messages"])
@pytest.mark.parametrize("policy", ["tool_turns", "never", "current_turn", "always"])
@pytest.mark.parametrize("kind", ["text", "agent", "both"])
def test_prefix_of_a_regular_conversation_leaves_only_its_end(kind: str, policy: str, api: str) -> None:
    profile = Profile().override({"request.reasoning_replay": policy, "transport.api": api})
    before: list[dict[str, Any]] = []
    prefix: TranslatedPrefix | None = None
    input = [{"type": "message", **user("Hello!")}]
    for turn in range(20):
        made = translated(input, before, [], profile, prefix=prefix, shared=len(before))
        assert isinstance(made, EncodedQuestion)
        prefix = made.prefix
        left = len(before) - (prefix.items if prefix else 0)
        assert left <= 4, f"{left} items of turn {turn} would be translated again"
        # Messages take no reasoning without a signature, and a warning about it ends the prefix.
        thought = {"type": "reasoning", "id": "rs_1" if api == "chat" else "rs_9", "summary": []}
        before += input
        if kind == "text" or (kind == "both" and turn % 3 == 2):
            before += [thought, {"type": "message", **assistant("Well.")}]
            input = [{"type": "message", **user("And then?")}]
        else:
            before += [thought, call(f"call_{turn}")]
            input = [output(f"call_{turn}")]
