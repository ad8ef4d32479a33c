"""`ampbench compare`: two stored runs, and what became of every metric of every case."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli import completing
from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Every,
    Format,
    Keyword,
    Only,
    Results,
    Threshold,
    is_typed,
)
from ampbench.cli.printing import OutputFormat
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.kinds import KINDS, named

if TYPE_CHECKING:
    from ampbench.records.verdicts import Comparison


TOLD_WHOLE = ("baseline", "candidate", "results", "format", "json")
"""The parameters that mean something where what changed is told whole, without verdicts on cases."""


def command(
    *,
    context: typer.Context,
    baseline: Annotated[str, typer.Argument(metavar="BASE", help=f"A run: {A_RUN}.", autocompletion=completing.runs)],
    candidate: Annotated[
        str,
        typer.Argument(metavar="CANDIDATE", help="Another, which is compared with it.", autocompletion=completing.runs),
    ],
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    only: Only = "",
    threshold: Threshold = "",
    every: Every = False,
    format: Format,
) -> int:
    """Compare two stored runs: what became slower, bigger or less accurate, and whether that is certain.

    The exit code says nothing of what was found: `ampbench gate` judges.

    Where both runs hold traces of a case, as those of `ampbench ab` do of what regressed, what changed in dtypes, casts
    and autocast's rules is said with it.

    \b
    Examples:
      ampbench compare 20260131T120000Z latest
      ampbench compare main.jsonl branch.jsonl -k "resnet and training" --only time --threshold 5
      ampbench compare BASE CANDIDATE --format markdown >> "$GITHUB_STEP_SUMMARY"
    """
    from ampbench import store
    from ampbench.cli.gate import Judging
    from ampbench.cli.printing import print_document, print_note
    from ampbench.judge.compare import compare_files

    policy = Judging(only=only, threshold=threshold).read(found=False)
    paths = store.find_run(baseline, results, print_note), store.find_run(candidate, results, print_note)
    kind = KINDS.get(store.read_header(paths[0]).explains)
    if kind is not None and kind.changes and store.read_header(paths[1]).explains == kind.name:
        _refuse_beside_changes(context, f"ampbench {kind.group} {kind.name}".replace("  ", " "))
        print_document(named(kind.changes)(*map(store.read_run, paths)), format)
        return 0
    compared = compare_files(paths[0], paths[1], policy.threshold_of)
    print_comparison(narrowed(compared, keyword, policy.only), format, show_all=every)
    return 0


def _refuse_beside_changes(context: typer.Context, verb: str) -> None:
    """Raise `UsageError` for what a command line gives and means nothing there; a settings file may give anything."""
    for parameter in context.command.params:
        if parameter.name not in TOLD_WHOLE and is_typed(context, parameter.name or ""):
            said = max(parameter.opts, key=len)
            raise UsageError(f"{said} means nothing between two runs of {verb}, which are told whole: leave it out")


def narrowed(comparison: "Comparison", keyword: str, kinds: Collection[str]) -> "Comparison":
    """Return a comparison with the findings of the cases that match `keyword`, of `kinds` and of outcomes alone.

    What explains cases, and changed rules, are findings of no kind and stay. Raises `NothingToRunError` where no case
    matches, or none of both runs has a number and nothing is explained.
    """
    from ampbench.base.keywords import matches
    from ampbench.judge.compare import of_cases, precision_means
    from ampbench.records.verdicts import OUTCOME

    chosen = of_cases(comparison, partial(matches, keyword))
    explains = bool(comparison.explained or comparison.rule_devices)
    if not comparison.findings and not explains:
        raise NothingToRunError("the runs have cases in common, but no number of any of them on either side")
    if keyword and not chosen.findings and not chosen.explained:
        raise NothingToRunError(f"no case of both runs matches -k {keyword!r}")
    findings = [one for one in chosen.findings if one.kind in (OUTCOME, *kinds)]
    return replace(chosen, findings=findings, means=precision_means(findings))


def print_comparison(comparison: "Comparison", format: OutputFormat, show_all: bool = False) -> None:
    """Print a comparison on stdout in `format`."""
    from ampbench.cli.printing import print_forms
    from ampbench.judge import show

    print_forms(
        format,
        lines=lambda console: show.comparison_lines(comparison, console.width, show_all),
        markdown=lambda: show.comparison_markdown(comparison),
        json=lambda: show.comparison_json(comparison),
        csv=lambda: show.comparison_csv(comparison),
    )
