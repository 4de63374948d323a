"""Forecasts as one HTML page without scripts: a plot of latencies, and a timeline of launches for each forecast."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

from .forecast import Forecast

WIDTH, LEFT, HEIGHT, BAR = 960, 90, 320, 26
COLOURS = ("#3366cc", "#cc4125", "#38761d", "#a64d79", "#b45f06", "#45818e", "#674ea7", "#7f6000")
BOUNDS = {
    "dram": "#6d9eeb", "l2": "#9fc5e8", "fma": "#e06666", "mma": "#cc0000", "wgmma": "#990000", "alu": "#f6b26b",
    "special": "#ffd966", "latency": "#b4a7d6", "launch": "#b7b7b7", "barrier": "#8e7cc3",
}  # fmt: skip
"""Colours by what a kernel waits for; others are grey."""
OTHER = "#d9d9d9"
STYLE = "body{font:14px system-ui,sans-serif;margin:2em;color:#222}svg{display:block}svg text{font-size:12px}"


@dataclass(frozen=True)
class Case:
    """A forecast, and the swept size, if any."""

    size: int | None
    found: Forecast


def page(model: str, swept: str | None, cases: Sequence[Case]) -> str:
    """Return the page as text."""
    title = html.escape(f"Forecast of {model}")
    plot = _lines(swept, cases) if swept and len({case.size for case in cases}) > 1 else _bars(swept, cases)
    timelines = "".join(f"<h2>{_name(swept, case)}</h2>{_timeline(case.found)}" for case in cases)
    keys = "".join(_key(bound, colour) for bound, colour in BOUNDS.items())
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return (
        f'<!DOCTYPE html><html lang="en"><head>{head}</head>'
        f"<body><h1>{title}</h1><p>Milliseconds; whiskers are the interval of the forecast.</p>{plot}"
        f"<p>Kernels in the order of their launches, one after the other; colours say what bounds them: {keys}"
        f" Where launches overlap, the total is less than their sum.</p>{timelines}</body></html>\n"
    )


def _key(bound: str, colour: str) -> str:
    return f'<span style="border-left:1em solid {colour};padding:0 1em 0 .3em">{bound}</span>'


def _name(swept: str | None, case: Case) -> str:
    found = case.found
    size = f", {swept} {case.size}" if swept else ""
    return html.escape(f"{found.gpu.name}{size}: {found.total_us / 1e3:.3f} ms, {found.runtime}")


# -- plots -------------------------------------------------------------------------------------------------------------


def _bars(swept: str | None, cases: Sequence[Case]) -> str:
    """Return a bar for each forecast, with its interval."""
    most = _most(cases)
    rows = []
    for number, case in enumerate(cases):
        found, y = case.found, number * BAR
        low, at, high = (LEFT * 3 + _x(us / most) for us in (found.low_us, found.total_us, found.high_us))
        middle = y + BAR / 2
        rows.append(_text(LEFT * 3 - 8, middle + 4, _name(swept, case).rpartition(":")[0], "end"))
        rows.append(_rect(LEFT * 3, y + 5, at - LEFT * 3, BAR - 10, COLOURS[0], _name(swept, case)))
        rows.append(_line(low, middle, high, middle, "#222"))
    return _svg(len(cases) * BAR + 4, rows)


def _x(share: float) -> float:
    return share * (WIDTH - LEFT * 3 - 10)


def _lines(swept: str | None, cases: Sequence[Case]) -> str:
    """Return a line for each GPU over the swept sizes, both axes from 0."""
    most, widest = _most(cases), max(case.size or 0 for case in cases)

    def place(case: Case, us: float) -> tuple[float, float]:
        x = LEFT + (case.size or 0) / widest * (WIDTH - 3 * LEFT)
        return x, HEIGHT - 30 - us / most * (HEIGHT - 50)

    drawn = list(_axis(most))
    for size in sorted({case.size or 0 for case in cases}):
        x = LEFT + size / widest * (WIDTH - 3 * LEFT)
        drawn.append(_text(x, HEIGHT - 12, f"{size}", "middle"))
    drawn.append(_text(WIDTH - 2 * LEFT + 20, HEIGHT - 12, html.escape(swept or ""), "start"))
    for number, name in enumerate(dict.fromkeys(case.found.gpu.name for case in cases)):
        mine = sorted((c for c in cases if c.found.gpu.name == name), key=lambda case: case.size or 0)
        colour = COLOURS[number % len(COLOURS)]
        points = [place(case, case.found.total_us) for case in mine]
        drawn.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{_points(points)}"/>')
        for case, (x, y) in zip(mine, points, strict=True):
            low, high = (place(case, us)[1] for us in (case.found.low_us, case.found.high_us))
            drawn.append(_line(x, low, x, high, colour))
            drawn.append(_rect(x - 3, y - 3, 6, 6, colour, _name(swept, case)))
        drawn.append(_text(points[-1][0] + 10, points[-1][1] + 4, html.escape(name), "start", colour))
    return _svg(HEIGHT, drawn)


def _axis(most_us: float) -> Iterator[str]:
    """Yield the ticks: round steps of milliseconds."""
    step = 10.0 ** floor(log10(most_us / 1e3))
    if most_us / 1e3 / step < 3:
        step /= 4
    for number in range(int(most_us / 1e3 / step) + 1):
        y = HEIGHT - 30 - number * step * 1e3 / most_us * (HEIGHT - 50)
        yield _line(LEFT, y, WIDTH - 2 * LEFT, y, "#ddd")
        yield _text(LEFT - 8, y + 4, f"{number * step:g}", "end")


def _most(cases: Sequence[Case]) -> float:
    return max([case.found.high_us for case in cases] + [case.found.total_us for case in cases] + [1e-3])


# -- timelines ---------------------------------------------------------------------------------------------------------


def _timeline(found: Forecast) -> str:
    total = sum(kernel.us for kernel in found.kernels) or 1.0
    drawn, start = [], 0.0
    for kernel in found.kernels:
        width = kernel.us / total * WIDTH
        told = f"{kernel.name}: {kernel.us:.2f} µs from {start:.2f} µs, {kernel.bound or 'unknown'}; "
        nodes = ", ".join(kernel.nodes[:4]) + (" …" if len(kernel.nodes) > 4 else "")
        colour = BOUNDS.get(kernel.bound, OTHER)
        drawn.append(_rect(start / total * WIDTH, 0, width, BAR, colour, html.escape(told + nodes)))
        start += kernel.us
    return _svg(BAR, drawn)


def _svg(height: float, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" role="img">{"".join(drawn)}</svg>'
    )


def _rect(x: float, y: float, width: float, height: float, colour: str, told: str) -> str:
    box = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}"'
    return f'<rect {box} fill="{colour}" stroke="#fff" stroke-width=".4"><title>{told}</title></rect>'


def _line(x: float, y: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x:.2f}" y1="{y:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
