"""Measurements and their ratios."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from tests.bench.scenarios import ALONE, Scenario


class Measurement(NamedTuple):
    """A server's round of a scenario; times are medians over its answers, in seconds."""

    cpu: float  # for each delta or each request
    first: float  # to the first delta
    late: float  # from when a paced stream was due to end


@dataclass
class Results:
    """Takes by scenario, server and round; memory by server; and skipped servers with reasons."""

    measurements: dict[tuple[str, str], list[Measurement]] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    instructions: dict[tuple[str, str], float] = field(default_factory=dict)  # per delta or request

    def of(self, scenario: Scenario, server: str) -> list[Measurement]:
        """Return a server's measurements; [] if skipped."""
        return self.measurements.get((scenario.name, server), [])

    def cpu(self, scenario: Scenario, server: str) -> float | None:
        """Return the rounds' median, in seconds."""
        measurements = self.of(scenario, server)
        return median(measurement.cpu for measurement in measurements) if measurements else None

    def ratio(self, scenario: Scenario, server: str, other: str) -> float | None:
        """Return a server's CPU relative to another server's: the median over the rounds."""
        pairs = zip(self.of(scenario, server), self.of(scenario, other), strict=False)
        ratios = [mine.cpu / theirs.cpu for mine, theirs in pairs if theirs.cpu]
        return median(ratios) if ratios else None

    def added(self, server: str, direct: str) -> float | None:
        """Return the seconds to a single stream's first delta, beyond the direct call's."""
        pairs = zip(self.of(ALONE, server), self.of(ALONE, direct), strict=False)
        differences = [mine.first - theirs.first for mine, theirs in pairs]
        return median(differences) if differences else None
