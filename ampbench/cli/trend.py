"""`ampbench trend`: many runs over torch versions, commits or dates."""

from typing import Annotated

import typer

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Every,
    Format,
    Keyword,
    Results,
    many_names,
)
from ampbench.cli.printing import print_document, print_note
from ampbench.errors import UnknownNameError
from ampbench.store.lines import no_garbage_collection

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
    from ampbench.trend.building import make_trend
    from ampbench.trend.reducing import read_runs
    from ampbench.trend.series import tracked
    from ampbench.trend.show import trend_document

    metrics = tracked(metric or ())
    with no_garbage_collection():
        found = read_runs(sources or [], results, metrics, keyword)
        for note in found.notes:
            print_note(note)
        trend = make_trend(found.runs, x, metrics)
    print_document(trend_document(trend, every), format)
    return 0
