"""`ampbench trend`: many runs over torch versions, commits or dates."""

from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.base.units import counted
from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Every,
    Format,
    Keyword,
    Results,
    many_names,
)
from ampbench.cli.printing import print_forms, print_note
from ampbench.errors import UnknownNameError
from ampbench.store.lines import no_garbage_collection

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


AXES = ("torch_version", "commit", "date")
"""What --x takes; `ampbench.trend.AXES` has the same names, and is slow to import."""


def command(
    *,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help=f"A run ({A_RUN}), a folder of runs, a results folder, asv's results, pytest-benchmark's JSON. "
            "Default: all of --results.",
        ),
    ] = None,
    x: Annotated[str, typer.Option("--x", metavar="AXIS", help="torch_version, commit or date.")] = AXES[0],
    metric: Annotated[
        list[str] | None,
        many_names(
            "--metric",
            "time, throughput, memory, floor, gradients, parameters, updates, nonfinite, flushed or reference. "
            "Default: time, memory, floor and gradients.",
        ),
    ] = None,
    keyword: Keyword = "",
    every: Every = False,
    results: Results = DEFAULT_RESULTS,
    format: Format,
) -> int:
    """Follow time, memory and errors over many runs, and say where they changed and what else did.

    \b
    Examples:
      ampbench trend
      ampbench trend --x commit -k "resnet and training" --metric time
      ampbench trend results .benchmarks/0001_ours.json --x date --all
    """
    if x not in AXES:
        raise UnknownNameError("--x axis", x, AXES)
    from ampbench.trend import show
    from ampbench.trend.building import make_trend
    from ampbench.trend.reducing import read_runs
    from ampbench.trend.series import tracked

    metrics = tracked(metric or ())
    with no_garbage_collection():
        found = read_runs(sources or [], results, metrics, keyword)
        for note in found.notes:
            print_note(note)
        trend = make_trend(found.runs, x, metrics)
    for reason, count in trend.left_out.items():
        print_note(f"left out {counted(count, 'run')} with {reason}")

    def lines(console: "Console") -> "list[Text]":
        return show.trend_lines(trend, console.width, every, not console.encoding.lower().startswith("utf"))

    print_forms(
        format,
        lines=lines,
        markdown=lambda: show.trend_markdown(trend),
        json=lambda: show.trend_json(trend),
        csv=lambda: show.trend_csv(trend),
    )
    return 0
