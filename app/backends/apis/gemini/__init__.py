"""Google's `generateContent` API, for AI Studio and Vertex AI."""

from __future__ import annotations

from app.backends.apis import Codec
from app.backends.apis.gemini.decoder import GeminiDecoder
from app.backends.apis.gemini.encoder import GEMINI_CALLER_FIELDS, to_gemini
from app.backends.apis.gemini.errors import error_with_field
from app.backends.apis.gemini.models import listed_model
from app.backends.apis.gemini.token_counting import gemini_tokenizer

GEMINI_CODEC = Codec(
    to_gemini,
    GeminiDecoder,
    GEMINI_CALLER_FIELDS,
    gemini_tokenizer,
    known_error=error_with_field,
    models_path="/models?pageSize=1000",  # default 50
    listed_model=listed_model,
)
