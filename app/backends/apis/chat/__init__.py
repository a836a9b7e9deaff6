from __future__ import annotations

from app.backends.apis import Codec
from app.backends.apis.chat.decoder import ChatDecoder
from app.backends.apis.chat.token_counting import Tokenizer
from app.core.request import CALLER_FIELDS, to_chat

CHAT_CODEC = Codec(to_chat, ChatDecoder, CALLER_FIELDS, Tokenizer)
