"""`ampbench compare`, `gate`, `trend` and `ab`: the changes between stored runs, or between two arms in turns."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from ampbench import store
from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    DURATION,
    Argument,
    Format,
    Keyword,
    Label,
    Limited,
    Made,
    Option,
    Results,
    Selected,
    Verbose,
    many_names,
    results_words,
    stored_already,
    typed,
    typed_seconds,
)
from ampbench.cli.printing import OutputFormat, print_document, print_note
from ampbench.cli.progress import progress_line
from ampbench.core.units import parse_seconds
from ampbench.errors import CASE_FAILED, INTERRUPTED, NothingToRunError, UnknownNameError, UsageError
from ampbench.records.case import matches
from ampbench.records.changes import ChangeCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampbench.comparison import Comparison
    from ampbench.judge.gate import Policy
    from ampbench.records.changes import GateResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """The policy of a comparison: a file, and the kinds of metrics that an option chooses instead."""

    policy: Annotated[
        str, Option(metavar="FILE", help="What the gate allows. Default of a gate: ampbench-gate.toml.")
    ] = ""
    metric: Annotated[list[str] | None, many_names("--metric", "Only these: time, memory, accuracy and rules.")] = None

    def read(self, default: bool = True) -> "Policy":
        """Return the policy in the file named, else (if `default`) in ampbench-gate.toml of the current folder.

        Without a file it is the default one. Raises `UsageError` for a wrong file or kind of metric.
        """
        from ampbench.judge.gate import FILE_NAME, Policy, check_kinds, read_policy

        path = Path(self.policy or FILE_NAME)
        policy = read_policy(path) if self.policy or (default and path.is_file()) else Policy()
        return replace(policy, only=check_kinds(self.metric)) if self.metric else policy

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
      ampbench compare main.jsonl branch.jsonl -k resnet --metric time
      ampbench compare BASE CANDIDATE --format markdown >> "$GITHUB_STEP_SUMMARY"
    """
    policy = judging.read(default=False)
    print_comparison(_compared(baseline, candidate, results, policy, keyword, print_note), format, verbose)
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
    doubts = list[str]()
    comparison = _compared(baseline, candidate, results, judging.read(), keyword, doubts.append)
    if doubts:
        raise UsageError(f"{doubts[0]}; name the run that is meant")
    cases = {*comparison.base.cases, *comparison.candidate.cases}
    if keyword and not any(matches(keyword, case_id) for case_id in cases):
        raise NothingToRunError(f"neither run has a case that matches -k {keyword!r}")
    return print_comparison(comparison, format, verbose, comparison.gate())


def _compared(
    baseline: str, candidate: str, results: Path, policy: "Policy", keyword: str, doubt: "Callable[[str], None]"
) -> "Comparison":
    """Return the comparison of two stored runs; `doubt` receives a line where it is unclear which run is meant."""
    base, new = [store.read_found(name, results, doubt) for name in (baseline, candidate)]
    from ampbench.comparison import Comparison

    return Comparison(base, new, policy, keyword)


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
            help=f"A run ({A_RUN}), a folder of runs, a results folder, asv's results. Default: all of --results.",
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
      ampbench trend results nightly --x date -v
    """
    if x not in AXES:
        raise UnknownNameError("--x axis", x, AXES)
    if format is OutputFormat.CSV:
        raise UsageError("trend prints --format table, json or markdown, not csv")
    from ampbench.trend import make_trend
    from ampbench.trend.show import trend_document
    from ampbench.trend.values import read_runs, tracked

    metrics = tracked(metric or ())
    with store.no_garbage_collection():
        read = read_runs(sources or [], results)
        for note in read.notes:
            print_note(note)
        followed = make_trend(read.runs, x, metrics, keyword)
    print_document(trend_document(followed, verbose), format)
    return 0


MOST_BLOCKS = 32
ARM = "A Python executable, git:REF, NAME=VALUE or here; repeat to combine."


def ab(
    *,
    baseline: Annotated[list[str] | None, Option("--baseline", metavar="ARM", help=ARM)] = None,
    candidate: Annotated[list[str] | None, Option("--candidate", metavar="ARM", help=f"Likewise. {ARM}")] = None,
    selection: Selected,
    blocks: Annotated[
        int, Option("--rounds", metavar="N", min=1, max=MOST_BLOCKS, help="Maximum number of blocks. Default: 32.")
    ] = MOST_BLOCKS,
    min_run_time: Annotated[
        str,
        Option(
            "--min-run-time",
            metavar="SECONDS",
            help=f"Timing per case, arm and block, {DURATION}. Default: 0.15 to 0.3, the fewer the cases the more.",
        ),
    ] = "",
    budget: Annotated[
        str, Option(metavar="SECONDS", help=f"Start no new block after this; running ones finish. {DURATION}.")
    ] = "",
    settings: Limited,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    gate: Annotated[bool, Option("--gate", help="Judge as ampbench gate does, with its exit codes.")] = False,
    judging: Annotated[Judging, Made(Judging)],
    verbose: Verbose = False,
    format: Format,
) -> int:
    """Measure two arms in turns, block by block, until every case is decided.

    The worst 10 cases that regressed are then traced in both arms, to list the dtypes, casts and rules of autocast that
    changed; --budget does not count that.

    An arm is a Python executable (another torch, with ampbench installed), git:REF (a commit of this repository), here
    (nothing changed), or NAME=VALUE settings: an environment variable in upper case, threads,
    precision, path, memory_format, sdpa, scaler, optimizer, or a workload's parameter.

    \b
    Examples:
      ampbench ab --baseline ~/torch-2.13/bin/python --candidate here resnet18
      ampbench ab --baseline git:main --candidate here model.py:make --gate
      ampbench ab --baseline precision=fp32 --candidate precision=bf16_pure mlp
      ampbench ab mlp    equal arms: does anything seem to differ?
    """
    from ampbench import ab

    if gate and (baseline or [ab.HERE]) == (candidate or [ab.HERE]):
        raise UsageError("--gate judges a candidate: name one that differs, as in --baseline git:main")

    rules = judging.read(default=gate)
    most = typed("--budget", parse_seconds, budget) if budget else None
    seconds = typed_seconds("--min-run-time", min_run_time) if min_run_time else None
    settings = replace(settings, rounds=blocks)

    store.require_writable(results)
    ours = ab.parse_arm("--baseline", baseline or [])
    theirs = ab.parse_arm("--candidate", candidate or [])
    plan = ab.Plan(kinds=rules.kinds, blocks=blocks, max_seconds=most, threshold_of=rules.threshold_of)
    watching = progress_line(live=sys.stderr.isatty())
    with ab.prepare(selection, settings, ours, theirs) as prepared, watching as watch:
        for note in prepared.notes:
            print_note(note)
        files = ab.measure(
            ab.timed_for(prepared, seconds),
            plan,
            results,
            label,
            ["ampbench", *sys.argv[1:]],
            watch,
            print_note,
        )
    from ampbench.comparison import Comparison

    runs = f"{files[0].stem} {files[1].stem}"
    again = f"ampbench {'gate' if gate else 'compare'} {runs}{results_words(results)}{judging.words}"
    with stored_already(again):
        base, new, ended = store.read_run(files[0]), store.read_run(files[1]), files[2]
        comparison = Comparison(base, new, rules)
        whole = comparison.whole
        # running out of time before any comparison is an error
        nothing = ended == "out of time" and all(change.code is ChangeCode.NOT_RUN for change in whole.findings)
        code = CASE_FAILED if whole.failed else NothingToRunError.exit_code if nothing else 0
        if gate:
            code = print_comparison(comparison, format, verbose, comparison.gate())
        else:
            print_comparison(comparison, format, verbose)
    print_note(f"{ended}: both arms are stored; {again} shows this again")
    return INTERRUPTED if ended == "interrupted" else code
