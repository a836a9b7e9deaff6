"""docs/speed.svg: each server's CPU per scenario, as a multiple of the byte proxy's."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, log10

from tests.bench.report import UNITS, shown
from tests.bench.results import Results
from tests.bench.scenarios import Scenario
from tests.bench.servers import ROOT, SERVERS, Server

ONE = "byte proxy"
WIDTH, LEFT, RIGHT, TOP, ROW = 860, 350, 40, 76, 44

# Has its own background, to be readable anywhere.
STYLE = """
    .paper { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, -apple-system, "Segoe UI", sans-serif }
    .value { font-size: 11px; }
    .halo { stroke: #ffffff; stroke-width: 3px }
    .title { font-size: 15px; font-weight: 600 } .faint { fill: #59636e }
    .grid { stroke: #d1d9e0 } .one { stroke: #59636e; stroke-dasharray: 4 3 }
    .c0 { fill: #0969da } .c1 { fill: #59636e } .c2 { fill: #bc4c00 } .c3 { fill: #8250df }
    @media (prefers-color-scheme: dark) {
        .paper { fill: #0d1117 } .halo { stroke: #0d1117 } text { fill: #f0f6fc } .faint { fill: #9198a1 }
        .grid { stroke: #3d444d } .one { stroke: #9198a1 }
        .c0 { fill: #4493f8 } .c1 { fill: #9198a1 } .c2 { fill: #f0883e } .c3 { fill: #ab7df8 }
    }
"""
# One shape for each server, for who cannot tell the colours.
SHAPES = (
    '<circle class="c0" cx="{x}" cy="{y}" r="6"/>',
    '<rect class="c1" x="{x}" y="{y}" width="10" height="10" transform="translate(-5 -5)"/>',
    '<path class="c2" d="M{x} {y}m0 -7l7 12h-14z"/>',
    '<path class="c3" d="M{x} {y}m0 -7l7 7l-7 7l-7 -7z"/>',
)


def write(results: Results, scenarios: Sequence[Scenario], servers: Sequence[Server]) -> None:
    """Write docs/speed.svg."""
    (ROOT / "docs" / "speed.svg").write_text(drawn(results, scenarios, servers), encoding="utf-8")


def drawn(results: Results, scenarios: Sequence[Scenario], servers: Sequence[Server]) -> str:
    """Return the plot: a row per scenario, and a mark per server; further right is more expensive."""
    names = {server.name for server in servers}
    marked = dict(
        zip((server.name for server in SERVERS if server.name != ONE and not server.scenarios), SHAPES, strict=True)
    )
    shapes = {name: shape for name, shape in marked.items() if name in names}
    rows = [
        (scenario, {name: ratio for name in shapes if (ratio := results.ratio(scenario, name, ONE))})
        for scenario in scenarios
        if scenario.per in UNITS
    ]
    ratios = [ratio for _, row in rows for ratio in row.values()] or [1.0]
    low, high = log10(min(0.5, *ratios)), max(1, ceil(log10(max(ratios))))
    bottom = TOP + ROW * len(rows)

    def x(ratio: float) -> float:
        return round(LEFT + (log10(ratio) - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" role="img">',
        f"<title>CPU of the server, as a multiple of a byte proxy's</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{bottom + 40}" rx="6"/>',
        '<text class="title" x="20" y="28">CPU of the server, as a multiple of a byte proxy\'s (logarithmic)</text>',
    ]
    at = 20.0
    for name, shape in shapes.items():
        parts += [shape.format(x=at + 6, y=50), f'<text x="{at + 18}" y="54.5">{escape(name)}</text>']
        at += 44 + 7 * len(name)
    for power in range(ceil(low), high + 1):
        tick_x, kind = x(10.0**power), "grid" if power else "one"
        parts.append(f'<line class="{kind}" x1="{tick_x}" x2="{tick_x}" y1="{TOP - 4}" y2="{bottom}"/>')
        label = f"{10**power:,}" if power else "byte proxy"
        parts.append(f'<text class="faint" x="{tick_x}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
    for number, (scenario, row) in enumerate(rows):
        y = TOP + ROW * number + ROW // 2 + 4
        about = escape(scenario.about.replace("`", ""))
        parts.append(f'<text class="faint" x="20" y="{y + 4}">{scenario.name}</text>')
        parts.append(f'<text x="52" y="{y + 4}">{about}</text>')
        for name, ratio in row.items():
            parts.append(shapes[name].format(x=x(ratio), y=y))
            for kind in ("value halo", "value"):  # lines end just before it
                parts.append(
                    f'<text class="{kind}" x="{x(ratio)}" y="{y - 10}" text-anchor="middle">{shown(ratio)}</text>'
                )
    return "\n".join([*parts, "</svg>", ""])
