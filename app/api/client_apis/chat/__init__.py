"""The Chat Completions client API: `POST /v1/chat/completions`."""

from app.api.client_apis import ClientAPI
from app.api.client_apis.chat.reader import hosted_types, read_chat
from app.core.stream.event_batch import COMMENT

CHAT_API = ClientAPI(read=read_chat, hosted_types=hosted_types, heartbeat=COMMENT)
