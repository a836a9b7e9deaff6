"""A model request is encoded once for each profile."""

from __future__ import annotations

from app.backends.apis import encode
from app.core.profile import Profile
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse


def test_question_with_an_encoding_for_the_profile_is_not_encoded_again() -> None:
    request, profile = CreateResponse(model="m", input="Hi"), Profile()
    model_request = ModelRequest(request, request.items(), "m")
    model_request.encoded = encode(model_request, profile)

    assert encode(model_request, profile) is model_request.encoded
    assert encode(model_request, Profile()) is model_request.encoded


def test_question_with_an_encoding_for_another_profile_is_encoded_again() -> None:
    request, profile = CreateResponse(model="m", input="Hi"), Profile()
    model_request = ModelRequest(request, request.items(), "m")
    model_request.encoded = encode(model_request, profile)

    encoded = encode(model_request, profile.override({"request.content.parts": "array"}))

    assert encoded.body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert model_request.encoded.body["messages"] == [{"role": "user", "content": "Hi"}]


def test_question_for_fewer_items_is_encoded_again() -> None:
    request, profile = CreateResponse(model="m", input="Hi"), Profile()
    model_request = ModelRequest(request, [*request.items(), *request.items()], "m")
    model_request.encoded = encode(model_request, profile)

    shorter = model_request.without_oldest(request.items())

    assert len(encode(shorter, profile).body["messages"]) == 1
