"""A question is encoded once for each profile."""

from __future__ import annotations

from app.backends.apis import encode
from app.core.profile import Profile
from app.core.request.question import Question
from app.core.types.request import CreateResponse


def test_question_with_an_encoding_for_the_profile_is_not_encoded_again() -> None:
    request, profile = CreateResponse(model="m", input="Hi"), Profile()
    question = Question(request, request.items(), "m")
    question.encoded = encode(question, profile)

    assert encode(question, profile) is question.encoded
    assert encode(question, Profile()) is question.encoded


def test_question_with_an_encoding_for_another_profile_is_encoded_again() -> None:
    request, profile = CreateResponse(model="m", input="Hi"), Profile()
    question = Question(request, request.items(), "m")
    question.encoded = encode(question, profile)

    encoded = encode(question, profile.override({"request.content.parts": "array"}))

    assert encoded.body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert question.encoded.body["messages"] == [{"role": "user", "content": "Hi"}]


def test_question_for_fewer_items_is_encoded_again() -> None:
    request, profile = CreateResponse(model="m", input="Hi"), Profile()
    question = Question(request, [*request.items(), *request.items()], "m")
    question.encoded = encode(question, profile)

    shorter = question.without_oldest(request.items())

    assert len(encode(shorter, profile).body["messages"]) == 1
