"""Measures ampbench itself, and prints each figure beside its goal as Markdown: `make bench`."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from ampbench.core.units import format_bytes, format_seconds
from benchmarks.self import load, report, startup, timing, tracing, verdicts, watching

Rows = Iterator[tuple[str, str, str]]


def _timing() -> Rows:
    overhead = timing.round_overhead()
    spread = f"{format_seconds(overhead['median'])} (worst {format_seconds(overhead['worst'])})"
    yield "a round beyond building, warm-up and timing", spread, "≤ 100 ms"
    for name, ratio in timing.against_bare_loop().items():
        yield f"timed / bare loop, {name}", f"{ratio:.4f}", "within 1%"
    for cell, (seconds, deviation) in timing.reference_cells().items():
        yield f"SD over servers, {cell} ({format_seconds(seconds)})", f"{deviation:.1%}", "≤ 1.5% on seven of eight"


def _store() -> Rows:
    goals = {"seconds": "≤ 4 s", "peak resident bytes": "≤ 1.5 GB"}
    for name, value in load.measure().items():
        written = format_bytes(value) if "bytes" in name else format_seconds(value)
        yield f"load 100,000 cases of 5 rounds of 20 samples: {name}", written, goals.get(name, "–")
    written = format_seconds(load.compare_seconds())
    yield "compare two runs of 10,000 cases of 10 rounds of 20 samples", written, "≤ 5 s"
    yield "trend over 200 runs of 200 cases of 4 rounds of 20 samples", format_seconds(load.trend_seconds()), "≤ 5 s"


PARTS: Mapping[str, Callable[[], Iterable[tuple[str, str, str]]]] = MappingProxyType(
    {
        "timing": _timing,
        "startup": startup.rows,
        "walls": startup.wall_rows,
        "store": _store,
        "report": report.rows,
        "tracing": tracing.rows,
        "headroom": tracing.headroom_rows,
        "watch": watching.rows,
    }
)
"""The parts in the order of the table of `docs/performance.md`: each yields figures with their goals."""


def main() -> None:
    """Print the table of `docs/performance.md`, and tables of error rates; of the parts that are named, theirs."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.self", description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"all and error rates if none: {', '.join(PARTS)}")
    parts = options.parse_args().parts
    if unknown := sorted(set(parts) - set(PARTS)):
        options.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    print("| what | measured | goal |\n|---|---|---|")
    for name in parts or PARTS:
        for row in PARTS[name]():
            print(f"| {' | '.join(row)} |", flush=True)
    if not parts:
        verdicts.print_tables()


if __name__ == "__main__":
    main()
