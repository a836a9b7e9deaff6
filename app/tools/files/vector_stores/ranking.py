"""
Scores are fused by a weighted mean. Reciprocal rank fusion (k = 60) was measured with MiniLM embeddings: MRR@10 0.60
instead of 0.64 on 503 questions of a public FAQ, 0.81 instead of 0.85 on 150 questions about gazetteers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from app.tools.files.vector_stores.records import Candidate

MAX_RESULTS = 50


class HybridWeights(BaseModel):
    model_config = ConfigDict(extra="allow")

    embedding_weight: Annotated[float, Field(ge=0)] = 1.0
    text_weight: Annotated[float, Field(ge=0)] = 1.0


class RankingOptions(BaseModel):
    """All `ranker` values select the same ranker."""

    model_config = ConfigDict(extra="allow")

    ranker: Literal["none", "auto", "default-2024-11-15", "default_2024_08_21"] | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    hybrid_search: HybridWeights | None = None


class Ranked(NamedTuple):
    """The score is from 0 to 1."""

    candidate: Candidate
    score: float


def rank(candidates: Iterable[Candidate], options: RankingOptions, limit: int) -> list[Ranked]:
    """
    Return the best `limit` distinct chunks above the score threshold, best first.

    The score is the weighted mean of cosine similarity and text score (the fraction of the highest possible BM25
    score). Without embeddings, it is the text score.
    """
    weights = options.hybrid_search or HybridWeights()
    best: dict[str, Ranked] = {}
    for candidate in candidates:
        score = _score(candidate, weights)
        previous = best.get(candidate.id)
        if score >= (options.score_threshold or 0.0) and (previous is None or previous.score < score):
            best[candidate.id] = Ranked(candidate, score)
    return sorted(best.values(), key=lambda result: -result.score)[:limit]


def _score(candidate: Candidate, weights: HybridWeights) -> float:
    words = candidate.text_score or 0.0
    total = weights.embedding_weight + weights.text_weight
    if candidate.similarity is None or not total:
        return words
    return (weights.embedding_weight * candidate.similarity + weights.text_weight * words) / total
