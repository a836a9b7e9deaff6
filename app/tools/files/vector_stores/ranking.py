"""Which chunks of those that were found come first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from app.tools.files.vector_stores.records import Candidate

DEFAULT_RESULTS, MOST_RESULTS = 10, 50


class HybridWeights(BaseModel):
    """How much the embedding counts, and how much the words."""

    embedding_weight: Annotated[float, Field(ge=0)] = 1.0
    text_weight: Annotated[float, Field(ge=0)] = 1.0


class RankingOptions(BaseModel):
    """OpenAI's `ranking_options`; there is one ranker, whatever it is called."""

    ranker: Literal["none", "auto", "default-2024-11-15", "default_2024_08_21"] | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    hybrid_search: HybridWeights | None = None


class Ranked(NamedTuple):
    """A chunk and how well it fits, from 0 to 1."""

    candidate: Candidate
    score: float


def ranked(candidates: Iterable[Candidate], options: RankingOptions, limit: int) -> list[Ranked]:
    """
    Return the best chunks, each once, whose score is at least the threshold.

    The score is the mean, by their weights, of the cosine similarity and of the share that BM25 gives of what it could
    give for the words of the query; of the latter alone where there are no embeddings.
    """
    weights = options.hybrid_search or HybridWeights()
    best: dict[str, Ranked] = {}
    for candidate in candidates:
        score = _score(candidate, weights)
        known = best.get(candidate.id)
        if score >= (options.score_threshold or 0.0) and (known is None or known.score < score):
            best[candidate.id] = Ranked(candidate, score)
    return sorted(best.values(), key=lambda one: -one.score)[:limit]


def _score(candidate: Candidate, weights: HybridWeights) -> float:
    words = candidate.text_score or 0.0
    total = weights.embedding_weight + weights.text_weight
    if candidate.similarity is None or not total:
        return words
    return (weights.embedding_weight * candidate.similarity + weights.text_weight * words) / total
