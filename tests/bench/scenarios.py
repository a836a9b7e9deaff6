"""The table of requests."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Scenario(NamedTuple):
    """A kind of load."""

    name: str
    about: str
    per: Literal["delta", "request", "round", "time"]  # CPU is divided by this unit; `time`: only latency counts
    model: str
    total: int  # conversations per round
    at_once: int
    stream: bool = False
    spread: bool = False  # start streams evenly over a stream's length, or their deltas coincide
    turns: range = range(1)  # turns with `previous_response_id`; earlier turns are not measured
    items: int = 1  # input items per turn
    size: int = 40  # characters per item
    store: bool = False  # are its responses stored?
    chat: bool = False  # whether all servers get Chat Completions requests
    rounds: int = 0  # demo tool calls before the answer; Chat Completions clients run each in a turn


ALONE = Scenario("first", "a stream, alone: time to the first delta", "time", "count-20-0", 200, 1, stream=True)
PACED = Scenario(
    "S3", "100 streams of 200 deltas, one each 10 ms", "delta", "count-200-10", 200, 100, True, spread=True
)
SCENARIOS = (
    Scenario("S1", "an answer of 20 tokens, as JSON", "request", "count-20-0", 800, 16),
    Scenario("S2", "streams of 200 deltas at full speed, 16 at once", "delta", "count-200-0", 320, 16, stream=True),
    PACED,
    PACED._replace(name="S3/50", about="50 such streams", total=100, at_once=50),
    Scenario("S4", "20 turns by `previous_response_id`", "request", "count-20-0", 20, 4, turns=range(20), store=True),
    Scenario("S4-2", "turn 2 of a conversation", "request", "count-20-0", 60, 4, turns=range(1, 2), store=True),
    Scenario("S4-50", "turn 50 of a conversation", "request", "count-20-0", 60, 4, turns=range(49, 50), store=True),
    Scenario("S4+", "turn 200 of a conversation", "request", "count-20-0", 60, 4, turns=range(199, 200), store=True),
    Scenario(
        "A-2",
        "turn 2 of an agent: reasoning, a call",
        "request",
        "count-20-0-agent",
        60,
        4,
        turns=range(1, 2),
        store=True,
    ),
    Scenario("A-50", "turn 50 of an agent", "request", "count-20-0-agent", 60, 4, turns=range(49, 50), store=True),
    Scenario("A-200", "turn 200 of an agent", "request", "count-20-0-agent", 60, 4, turns=range(199, 200), store=True),
    Scenario("S5", "an input of 200 items, 200 KB", "request", "count-20-0", 160, 4, items=200, size=1000),
    Scenario("S6", "a function call, streamed in 200 pieces", "delta", "count-200-0-call", 160, 16, stream=True),
    Scenario("S7", "100 deltas of reasoning, then 100 of text", "delta", "count-200-0-thought", 160, 16, stream=True),
    Scenario("T4", "4 rounds of a hosted tool, streamed", "round", "count-20-0-tools4", 80, 4, stream=True, rounds=4),
    Scenario("P1", "passed through: an answer of 20 tokens, as JSON", "request", "count-20-0", 800, 16, chat=True),
    Scenario(
        "P2", "passed through: streams of 200 deltas at full speed", "delta", "count-200-0", 320, 16, True, chat=True
    ),
    PACED._replace(name="P3", about="passed through: 100 streams of 200 deltas, one each 10 ms", chat=True),
    ALONE,
)

# Long streams, to measure the memory per open stream.
HELD = Scenario("memory", "200 open streams", "time", "count-2-100000", 200, 200, stream=True)


def shortened(scenario: Scenario) -> Scenario:
    """Return a similar scenario that needs a fraction of a second."""
    count, rest = scenario.model.removeprefix("count-").split("-", 1)
    return scenario._replace(
        model=f"count-{min(int(count), 20)}-{rest}",
        total=min(scenario.total, 8),
        at_once=min(scenario.at_once, 8),
        turns=range(min(scenario.turns.start, 5), min(scenario.turns.stop, 6)),
        items=min(scenario.items, 20),
    )
