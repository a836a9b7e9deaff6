"""
Time of a search in a vector store with 100,000 chunks, on one core.

    python -m tests.load.search [chunks]

Chunks have 120 words with a Zipf distribution, and embeddings with 768 dimensions. Queries have three to eight words:
questions without stop words, words in nearly every chunk (such as stop words in languages other than English), and rare
words.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

from app.tools.files.sqlite.index import Index
from app.tools.files.vector_stores.records import EmbeddedText

DIMENSIONS = 768
WORDS = 120
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu", "an", "er", "ol"]
STOP_WORDS = 70
QUERIES = 100


class Language:
    """Artificial words, with the frequencies of a real language."""

    def __init__(self, chance: random.Random, size: int = 60_000) -> None:
        self._chance = chance
        self.words = [*dict.fromkeys("".join(chance.choices(SYLLABLES, k=chance.randint(1, 5))) for _ in range(size))]
        self._frequencies = [*accumulate(1 / (rank + 3) for rank in range(len(self.words)))]

    def text(self, count: int) -> str:
        """Return words as they are written."""
        return " ".join(self._chance.choices(self.words, cum_weights=self._frequencies, k=count))

    def question(self, count: int) -> str:
        """Return words without the most frequent ones: a search ignores stop words."""
        weights = [frequency - self._frequencies[STOP_WORDS - 1] for frequency in self._frequencies[STOP_WORDS:]]
        return " ".join(self._chance.choices(self.words[STOP_WORDS:], cum_weights=weights, k=count))

    def rare(self, count: int) -> str:
        """Return words found in few texts."""
        return " ".join(self._chance.choices(self.words[len(self.words) // 4 :], k=count))


def vector(chance: random.Random) -> bytes:
    """Return an embedding."""
    return array("f", [chance.gauss(0, 1) for _ in range(DIMENSIONS)]).tobytes()


def chunks(language: Language, chance: random.Random, count: int) -> Iterator[EmbeddedText]:
    """Yield chunks with some thousands of different embeddings, which makes no difference for search."""
    vectors = [vector(chance) for _ in range(4000)]
    for number in range(count):
        yield EmbeddedText(language.text(WORDS), vectors[number % len(vectors)], "model")


def measured(search: Callable[[int], object]) -> str:
    """Return the median and the 95th percentile over many searches, in milliseconds on one core."""
    times = []
    for number in range(QUERIES):
        began = time.process_time()
        search(number)
        times.append((time.process_time() - began) * 1000)
    return f"median {statistics.median(times):5.1f} ms, 95 % within {statistics.quantiles(times, n=20)[-1]:5.1f} ms"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    chance = random.Random(1)
    language = Language(chance)
    with tempfile.TemporaryDirectory() as folder:
        index = Index(Path(folder) / "index.db")
        began = time.process_time()
        files = count // 1000
        for file in range(1, files + 1):
            index.replace(file, chunks(language, chance, 1000), range(files + 1))
        print(f"{count} chunks written in {time.process_time() - began:.0f} s")
        questions = [language.question(chance.randint(3, 8)) for _ in range(QUERIES)]
        frequent = [language.text(chance.randint(3, 8)) for _ in range(QUERIES)]
        rare = [language.rare(chance.randint(3, 8)) for _ in range(QUERIES)]
        vectors = [vector(chance) for _ in range(QUERIES)]
        some = range(1, files // 2)
        for name, search in {
            "words": lambda n: index.search(EmbeddedText(questions[n]), 50, None),
            "frequent words": lambda n: index.search(EmbeddedText(frequent[n]), 50, None),
            "rare words": lambda n: index.search(EmbeddedText(rare[n]), 50, None),
            "words, half of the files": lambda n: index.search(EmbeddedText(questions[n]), 50, some),
            "words and embeddings": lambda n: index.search(EmbeddedText(questions[n], vectors[n], "model"), 50, None),
        }.items():
            print(f"{name:26} {measured(search)}")


if __name__ == "__main__":
    main()
