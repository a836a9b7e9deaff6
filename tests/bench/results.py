"""What was measured, and the ratios in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from tests.bench.scenarios import ALONE, Scenario


class Take(NamedTuple):
    """One server in one round of a scenario; the times are medians of its answers, in seconds."""

    cpu: float  # for each delta or each request
    first: float  # to the first delta
    late: float  # from when a paced stream was due to end


@dataclass
class Results:
    """Takes by scenario and server, one for each round; bytes by server; and what was left out, with the reason."""

    takes: dict[tuple[str, str], list[Take]] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    instructions: dict[tuple[str, str], float] = field(default_factory=dict)  # per delta or request

    def of(self, scenario: Scenario, server: str) -> list[Take]:
        """Return the takes of a server, or none where it took no part."""
        return self.takes.get((scenario.name, server), [])

    def cpu(self, scenario: Scenario, server: str) -> float | None:
        """Return the median of the rounds, in seconds."""
        takes = self.of(scenario, server)
        return median(take.cpu for take in takes) if takes else None

    def ratio(self, scenario: Scenario, server: str, other: str) -> float | None:
        """Return how many times the CPU of the other one it took: the median of the rounds' ratios."""
        pairs = zip(self.of(scenario, server), self.of(scenario, other), strict=False)
        ratios = [mine.cpu / theirs.cpu for mine, theirs in pairs if theirs.cpu]
        return median(ratios) if ratios else None

    def added(self, server: str, direct: str) -> float | None:
        """Return the seconds to the first delta of a stream alone, beyond those of the direct call."""
        pairs = zip(self.of(ALONE, server), self.of(ALONE, direct), strict=False)
        differences = [mine.first - theirs.first for mine, theirs in pairs]
        return median(differences) if differences else None
