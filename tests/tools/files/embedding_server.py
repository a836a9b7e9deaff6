"""
A backend with `/embeddings` on a socket: a toy model with a few synonyms.

A text is a bag of words, hashed into 256 dimensions with signs, after replacing each word by its first synonym. Results
are the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable

from tests.support.upstream import HANG, Received, Step, Upstream, reply, status

DIMENSIONS = 256


class EmbeddingServer(Upstream):
    """Answers `POST /embeddings`; `refusals` are the first statuses; 200 is an answer."""

    def __init__(self, synonyms: Iterable[Iterable[str]] = ()) -> None:
        super().__init__()
        self._meaning = {word: group[0] for group in map(list, synonyms) for word in group}
        self.refusals: list[int] = []
        self.refusal_headers: dict[str, str] = {}
        self.hangs = False
        self.counts = True  # whether answers report the number of words as tokens
        self.texts: list[str] = []

    def answer_to(self, request: Received) -> list[Step]:
        if not request.path.endswith("/embeddings"):
            return super().answer_to(request)
        self.requests.append(request)
        if self.hangs:
            return [HANG]
        if self.refusals and (code := self.refusals.pop(0)) != 200:
            return status(code, {"error": {"message": "not now"}}, self.refusal_headers)
        texts = request.json["input"]
        self.texts += texts
        data = [
            {"object": "embedding", "index": index, "embedding": self.vector(text)} for index, text in enumerate(texts)
        ]
        # Not every server keeps the order.
        tokens = sum(len(text.split()) for text in texts)
        usage = {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}} if self.counts else {}
        return reply(json.dumps({"object": "list", "model": "toy", "data": data[::-1], **usage}).encode())

    def vector(self, text: str) -> list[float]:
        vector = [0.0] * DIMENSIONS
        for word in re.findall(r"\w+", text.lower()):
            digest = hashlib.sha256(self._meaning.get(word, word).encode()).digest()
            vector[digest[0]] += 1.0 if digest[1] % 2 else -1.0
        length = math.sqrt(sum(number * number for number in vector)) or 1.0
        return [number / length for number in vector]
