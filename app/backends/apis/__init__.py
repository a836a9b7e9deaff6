"""
The APIs of model servers: how each encodes a question, and decodes the answer to it.

An API is a row of `APIS`, which a profile names (`transport.api`). All else that a server needs is in
`app.backends.server`: connections, credentials, retries, refusals, adaptation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import httpx

from app.backends.apis.chat.decoder import ChatDecoder
from app.backends.apis.chat.token_counting import Post, Tokenizer
from app.backends.apis.messages import encoder as messages
from app.backends.apis.messages.decoder import MessagesDecoder
from app.backends.apis.messages.token_counting import MessagesTokenizer
from app.backends.apis.responses import encoder as responses
from app.backends.apis.responses.decoder import ResponsesDecoder
from app.backends.apis.responses.token_counting import InputTokenizer
from app.core.profile import Profile
from app.core.request import CALLER_FIELDS, to_chat
from app.core.request.question import EncodedQuestion, Question
from app.core.stream.answer import AnswerDecoder, ErrorIn


class TokenCounting(Protocol):
    """Counts the tokens of prompts for one server."""

    async def count(self, body: dict[str, Any], post: Post) -> int | None:
        """Return the number of tokens in the prompt of an encoded question; None if the server cannot count them."""
        ...


class API(NamedTuple):
    """An API of model servers."""

    # Where requests are sent, below the base URL; `transport.path` overrides it.
    path: str
    # Returns the request for a question to servers with a profile; raises `InvalidRequest` if there is none.
    encode: Callable[[Question, Profile], EncodedQuestion]
    # Returns the decoder of the answer to a request; the function finds errors in its events.
    decoder: Callable[[EncodedQuestion, Profile, ErrorIn], AnswerDecoder]
    # The Responses API's field for a field of a request, and for everything inside it; others have the same name.
    caller_fields: Mapping[str, str]
    # Returns the tokenizer of the server with this base URL.
    tokenizer: Callable[[httpx.URL, Profile], TokenCounting]
    # Sent with each request to the server, unless the profile has them.
    headers: Mapping[str, str] = {}


APIS = {
    "chat": API("/chat/completions", to_chat, ChatDecoder, CALLER_FIELDS, Tokenizer),
    "responses": API(
        "/responses",
        responses.to_responses,
        ResponsesDecoder,
        responses.RESPONSES_CALLER_FIELDS,
        InputTokenizer,
    ),
    "messages": API(
        "/messages",
        messages.to_messages_request,
        MessagesDecoder,
        messages.MESSAGES_CALLER_FIELDS,
        MessagesTokenizer,
        {"anthropic-version": "2023-06-01"},
    ),
}

# The APIs that a server with the option `auto` is asked by: the next one where it does not have the one before.
AUTOMATIC = ("responses", "chat")


def profiles_by_api(profile: Profile) -> list[Profile]:
    """
    Return the profile once for each API that the server may be asked by, the best first.

    With a path of its own, a server with `auto` is asked by the API whose path it ends with, or else by chat.
    """
    options = profile.transport
    names: Sequence[str] = [options.api]
    if options.api == "auto" and options.path:
        names = [next((name for name, api in APIS.items() if (options.path or "").endswith(api.path)), "chat")]
    elif options.api == "auto":
        names = AUTOMATIC
    if [*names] == [options.api]:
        return [profile]
    return [profile.model_copy(update={"transport": options.model_copy(update={"api": name})}) for name in names]


def encode(question: Question, profile: Profile) -> EncodedQuestion:
    """Return a question as servers with this profile take it; raises `InvalidRequest` if they cannot."""
    for known, encoded in question.encodings:
        if known is profile or known == profile:
            return encoded
    encoded = APIS[profiles_by_api(profile)[0].transport.api].encode(question, profile)
    question.encodings.append((profile, encoded))
    return encoded
