"""`ampbench compare`, `gate` and `trend`: the changes between two stored runs, or over many."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Argument,
    Format,
    Keyword,
    Made,
    Option,
    Results,
    Verbose,
    many_names,
)
from ampbench.cli.printing import OutputFormat, print_document, print_note
from ampbench.errors import NothingToRunError, UnknownNameError, UsageError
from ampbench.store.lines import no_garbage_collection

if TYPE_CHECKING:
    from ampbench.comparison import Comparison
    from ampbench.judge.gate import Policy
    from ampbench.records.changes import GateResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """The policy of a comparison: a file, and the kinds of metrics that an option chooses instead."""

    policy: Annotated[
        str,
        Option(metavar="FILE", help="What the gate lets pass (docs/gate.md). Default of a gate: ampbench-gate.toml."),
    ] = ""
    metric: Annotated[list[str] | None, many_names("--metric", "Only these: time, memory, accuracy and rules.")] = None

    def read(self, default: bool = True) -> "Policy":
        """Return the policy in the file named, else (if `default`) in ampbench-gate.toml of the current folder.

        Without a file it is the default one. Raises `UsageError` for a wrong file or kind of metric.
        """
        from msgspec import structs

        from ampbench.judge.gate import FILE_NAME, Policy, check_kinds, read_policy

        path = Path(self.policy or FILE_NAME)
        policy = read_policy(path) if self.policy or (default and path.is_file()) else Policy()
        return structs.replace(policy, only=check_kinds(self.metric)) if self.metric else policy

    @property
    def words(self) -> str:
        """The options of this policy on a command line, each after a space."""
        values = {"--metric": ",".join(self.metric or ()), "--policy": self.policy}
        return "".join(f" {option} {shlex.quote(value)}" for option, value in values.items() if value)


def command(
    *,
    baseline: Annotated[str, Argument(metavar="BASE", help=f"A run: {A_RUN}.")],
    candidate: Annotated[str, Argument(metavar="CANDIDATE", help="Another, which is compared with it.")],
    judging: Annotated[Judging, Made(Judging)],
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    verbose: Verbose = False,
    format: Format,
) -> int:
    """Compare two stored runs: what became slower, bigger or less accurate, and whether that is certain.

    The exit code does not depend on the result: `ampbench gate` judges.

    A change is candidate / baseline - 1; of an error, its growth relative to the baseline's or, if larger, to the error
    of rounding to the dtype. Traces of a case in both runs, as after `ampbench ab`, explain its changes.

    \b
    Examples:
      ampbench compare 20260131T120000Z latest
      ampbench compare main.jsonl branch.jsonl -k "resnet and training" --metric time
      ampbench compare BASE CANDIDATE --format markdown >> "$GITHUB_STEP_SUMMARY"
    """
    from ampbench import store

    policy = judging.read(default=False)
    paths = store.find_run(baseline, results, print_note), store.find_run(candidate, results, print_note)
    from ampbench.comparison import Comparison
    from ampbench.judge.rounds import MeasuredRun

    print_comparison(
        Comparison(MeasuredRun.read(paths[0]), MeasuredRun.read(paths[1]), policy, keyword), format, verbose
    )
    return 0


def gate(
    *,
    baseline: Annotated[str, Argument(metavar="BASE", help=f"A run: {A_RUN}.")],
    candidate: Annotated[str, Argument(metavar="CANDIDATE", help="The run to let pass or not.")],
    judging: Annotated[Judging, Made(Judging)],
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    verbose: Verbose = False,
    format: Format,
) -> int:
    """Compare two stored runs under a policy: exit code 0 if the candidate may pass, 1 on a regression.

    \b
    Examples:
      ampbench gate main.jsonl latest
      ampbench gate main.jsonl latest --metric memory,accuracy
    """
    policy = judging.read()
    from ampbench import store
    from ampbench.comparison import Comparison
    from ampbench.judge.rounds import MeasuredRun
    from ampbench.records.case import matches

    base, new = [MeasuredRun.read(store.find_run(name, results, _refuse)) for name in (baseline, candidate)]
    if keyword and not any(matches(keyword, case_id) for run in (base, new) for case_id in run.stored.cases):
        raise NothingToRunError(f"neither run has a case that matches -k {keyword!r}")
    comparison = Comparison(base, new, policy, keyword)
    return print_comparison(comparison, format, verbose, comparison.gate())


def _refuse(doubt: str) -> None:
    """Raise `UsageError` where it is unclear which run is the latest."""
    raise UsageError(f"{doubt}; name the run that is meant")


def print_comparison(
    comparison: "Comparison", format: OutputFormat, verbose: bool = False, gate: "GateResult | None" = None
) -> int:
    """Print a comparison on stdout in `format`, with the result of a `gate`; return its exit code.

    With a machine's format the gate's lines go to stderr; JSON has its verdict as "gate".
    """
    from ampbench.show import comparison as show

    compared = comparison.compared if gate is None else comparison.gated
    document = show.comparison_document(compared, everything=verbose, gate=gate)
    print_document(document, format)
    if gate and format in (OutputFormat.JSON, OutputFormat.CSV):
        for line in (*show.gate_lines(compared, gate), document.answer):
            print_note(line)
    return gate.exit_code if gate else 0


AXES = ("torch_version", "commit", "date")
"""What --x takes; `ampbench.trend.AXES` has the same names, and is slow to import."""


def trend(
    *,
    sources: Annotated[
        list[str] | None,
        Argument(
            metavar="SOURCE",
            help=f"A run ({A_RUN}), a folder of runs, a results folder, asv's results, pytest-benchmark's JSON. "
            "Default: all of --results.",
        ),
    ] = None,
    x: Annotated[str, Option("--x", metavar="AXIS", help="torch_version, commit or date.")] = AXES[0],
    metric: Annotated[
        list[str] | None,
        many_names("--metric", "time, memory, floor (the output's error) or gradients. Default: all."),
    ] = None,
    keyword: Keyword = "",
    verbose: Verbose = False,
    results: Results = DEFAULT_RESULTS,
    format: Format,
) -> int:
    """Follow time, memory and errors over many runs; show where they changed, and what else did.

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
        read = read_runs(sources or [], results, metrics, keyword)
        for note in read.notes:
            print_note(note)
        followed = make_trend(read.runs, x, metrics)
    print_document(trend_document(followed, verbose), format)
    return 0
