"""Laws for every conversation sent to the Gemini API. The server refuses violations."""

from __future__ import annotations

import copy
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.backends.apis.gemini.encoder import to_gemini
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.request.reasoning import bound
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.core.request.test_chat_request_laws import UPSTREAM, requests
from tests.support.gemini_server import check, signed, thought

GEMINI = load_profile("gemini")
SIGNED: dict[str, Any] = {
    **UPSTREAM,
    "rs_1": bound(GEMINI, parts=[signed(thought("hm"))]),
    "rs_2": bound(GEMINI),
    "rs_3": bound(GEMINI.override({"transport.base_url": "https://other.test"}), parts=[signed(thought("foreign"))]),
}

profiles = st.fixed_dictionaries(
    {
        "request.reasoning_replay": st.sampled_from(["tool_turns", "never", "current_turn", "always"]),
        "request.content.tool_images": st.sampled_from(["hoist", "inline", "drop", "error"]),
        "request.content.audio": st.sampled_from(["pass", "drop"]),
        "request.tool_choice.named": st.sampled_from(["object", "filter_required", "drop"]),
        "request.strict": st.sampled_from(["send", "drop", "force"]),
    }
).map(GEMINI.override)
models = st.sampled_from(["gemini-3-pro", "gemini-2.5-flash"])
efforts = st.sampled_from([None, "none", "minimal", "medium", "max"])


def encoded(request: dict[str, Any], profile: Profile, model: str) -> EncodedRequest | None:
    validated = CreateResponse.model_validate(request)
    try:
        return to_gemini(ModelRequest(validated, validated.items(), model, SIGNED), profile)
    except InvalidRequest:
        return None


@given(requests, profiles, models, efforts)
def test_every_conversation_is_refused_or_sent_as_the_server_takes_it(
    request: dict[str, Any], profile: Profile, model: str, effort: str | None
) -> None:
    request = {**copy.deepcopy(request), **({"reasoning": {"effort": effort, "summary": "auto"}} if effort else {})}
    before = copy.deepcopy(SIGNED)
    if (model_request := encoded(request, profile, model)) is None:
        return
    body = {name: value for name, value in model_request.body.items() if name != "model"}
    check(body, level=model == "gemini-3-pro")
    assert before == SIGNED
    assert orjson.dumps(body)
    assert "foreign" not in str(body)
    names = [function["name"] for tool in body.get("tools", ()) for function in tool["functionDeclarations"]]
    assert names == [*model_request.bindings]
    assert model_request.allowed is None or model_request.allowed <= {*names}
