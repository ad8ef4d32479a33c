"""Measures ampbench itself, and prints each figure beside its goal as Markdown: `make bench`."""

from ampbench.base.units import format_bytes, format_seconds
from benchmarks.self import (
    asv_suite,
    compare,
    headroom,
    importing,
    load,
    report,
    startup,
    studies,
    switches,
    timing,
    tracing,
    trend,
    verdicts,
    walls,
)


def main() -> None:
    """Print the table of `docs/performance.md`."""
    print("| what | measured | goal |\n|---|---|---|")
    print(f"| noise of the machine: a fixed loop over 1.1 times its fastest | {timing.disturbance():.0%} | – |")
    overhead = timing.round_overhead()
    spread = f"{format_seconds(overhead['median'])} (worst {format_seconds(overhead['worst'])})"
    print(f"| a round beyond building, warm-up and timing | {spread} | ≤ 100 ms |")
    for name, ratio in timing.against_bare_loop().items():
        print(f"| timed / bare loop, {name} | {ratio:.4f} | within 1% |")
    for cell, (seconds, deviation) in timing.reference_cells().items():
        print(f"| SD over servers, {cell} ({format_seconds(seconds)}) | {deviation:.1%} | ≤ 1.5% on seven of eight |")
    for what, measured, goal in [*startup.rows(), *walls.rows()]:
        print(f"| {what} | {measured} | {goal} |")
    loaded = load.measure()
    goals = {"seconds": "≤ 4 s", "seconds, once it has been read": "≤ 0.4 s", "peak resident bytes": "≤ 1.5 GB"}
    for name, value in loaded.items():
        written = format_bytes(value) if "bytes" in name else format_seconds(value)
        print(f"| load 100,000 cases of 5 rounds of 20 samples: {name} | {written} | {goals.get(name, '–')} |")
    first, again = map(format_seconds, compare.seconds())
    print(f"| compare two runs of 10,000 cases of 10 rounds of 20 samples | {first} | ≤ 5 s |")
    print(f"| compare them again | {again} | – |")
    imported = format_seconds(importing.seconds())
    print(f"| import 1,000 result files of asv: read, check, write | {imported} | ≤ 5 s |")
    first, again = map(format_seconds, trend.seconds())
    print(f"| trend over 200 runs of 200 cases of 4 rounds of 20 samples | {first} | ≤ 5 s |")
    print(f"| the same trend again | {again} | ≤ 1 s |")
    for what, measured, goal in report.rows():
        print(f"| {what} | {measured} | {goal} |")
    for rows in (tracing.rows(), headroom.rows(), studies.rows()):
        for what, measured, goal in rows:
            print(f"| {what} | {measured} | {goal} |")
    suite = asv_suite.measure()
    ratio = suite["asv seconds"] / suite["ampbench seconds"]
    print(f"| the asv suite's time / that of ampbench run, 3 workloads | {ratio:.2f} | ≤ 1.2 |")
    verdicts.print_tables()
    switches.main()


if __name__ == "__main__":
    main()
