"""`ampbench ab`: two environments, commits or settings, measured in turns; and the machine against itself."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from ampbench.ab.arms import HERE, parse_arm
from ampbench.cli.compare import Judging, print_comparison
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    DURATION,
    Format,
    Label,
    Limited,
    Made,
    Option,
    Results,
    Selected,
    Verbose,
    results_words,
    stored_already,
    typed,
    typed_seconds,
)
from ampbench.cli.printing import OutputFormat, print_document, print_note
from ampbench.core.units import parse_seconds
from ampbench.errors import CASE_FAILED, INTERRUPTED, NothingToRunError, UsageError
from ampbench.records.changes import ChangeCode

if TYPE_CHECKING:
    from ampbench.judge.gate import Policy


MOST_BLOCKS, CONTROL_BLOCKS = 32, 16
ARM = "A Python, git:REF, NAME=VALUE or here; repeat to combine."


def command(
    *,
    baseline: Annotated[list[str] | None, Option("--baseline", metavar="ARM", help=ARM)] = None,
    candidate: Annotated[list[str] | None, Option("--candidate", metavar="ARM", help=f"Likewise. {ARM}")] = None,
    selection: Selected,
    blocks: Annotated[
        int | None,
        Option(
            "--rounds",
            metavar="N",
            min=1,
            max=MOST_BLOCKS,
            help="The most blocks. Default: 32, the last at which cases are judged; of an arm against itself 16.",
        ),
    ] = None,
    min_run_time: Annotated[
        str,
        Option(
            "--min-run-time",
            metavar="SECONDS",
            help=f"Timing per case, arm and block, {DURATION}. Default: 0.15 to 0.3, the fewer the cases the more.",
        ),
    ] = "",
    budget: Annotated[
        str, Option(metavar="SECONDS", help=f"Begin nothing more after this and let what runs end, {DURATION}.")
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

    Equal arms show the smallest change that this machine detects, and its false alarms.

    An arm is a Python executable (another torch, with ampbench installed), git:REF (a commit of this repository), here
    (nothing changed), or NAME=VALUE settings: an environment variable in upper case, threads,
    precision, path, memory_format, sdpa, scaler, optimizer, or a workload's parameter.

    \b
    Examples:
      ampbench ab --baseline ~/torch-2.13/bin/python --candidate here resnet18 --budget 5m
      ampbench ab --baseline git:main --candidate here model.py:make --gate
      ampbench ab --baseline precision=fp32 --candidate precision=bf16_autocast mlp
      ampbench ab mlp                        smallest change detected here, and false alarms
    """
    itself = (baseline or [HERE]) == (candidate or [HERE])
    if itself and gate:
        raise UsageError("--gate judges a candidate: name one that differs, as in --baseline git:main")

    rules = judging.read(default=gate)
    count = blocks or (CONTROL_BLOCKS if itself else MOST_BLOCKS)
    most = typed("--budget", parse_seconds, budget) if budget else None
    seconds = typed_seconds("--min-run-time", min_run_time) if min_run_time else None
    settings = replace(settings, rounds=count)

    from ampbench.ab import session
    from ampbench.cli.progress import block_progress
    from ampbench.store import require_writable

    require_writable(results)
    ours = parse_arm("--baseline", baseline or [])
    theirs = parse_arm("--candidate", candidate or [])
    kinds = ("time",) if itself else rules.kinds
    plan = session.Plan(
        kinds=kinds, blocks=count, max_seconds=most, itself=itself, threshold_of=rules.threshold_of,
    )  # fmt: skip
    with session.prepare(selection, settings, ours, theirs) as prepared, block_progress() as watch:
        for note in prepared.notes:
            print_note(note)
        files = session.measure(
            session.timed_for(prepared, seconds),
            plan,
            results,
            label,
            ["ampbench", *sys.argv[1:]],
            watch,
            print_note,
        )
    runs = f"{files[0].stem} {files[1].stem}"
    again = f"ampbench {'gate' if gate else 'compare'} {runs}{results_words(results)}{judging.words}"
    return _reported(files, rules, itself, gate, verbose, format, again)


def _reported(
    files: "tuple[Path, Path, str]",
    policy: "Policy",
    itself: bool,
    gate: bool,
    verbose: bool,
    format: OutputFormat,
    again: str,
) -> int:
    """Print the verdicts of the session and the command `again` that shows them; return the exit code.

    Running out of time before any comparison is an error.
    """
    from ampbench.comparison import Comparison
    from ampbench.judge.compare import judge_self
    from ampbench.judge.rounds import MeasuredRun
    from ampbench.show.comparison import control_document
    from ampbench.store import read_run

    with stored_already(again):
        baseline, candidate, ended = read_run(files[0]), read_run(files[1]), files[2]
        comparison = Comparison(baseline, candidate, policy)
        whole = comparison.whole
        nothing = ended == "out of time" and all(change.code is ChangeCode.NOT_RUN for change in whole.findings)
        failed = whole.failed or (itself and MeasuredRun.of(baseline).failed)
        code = CASE_FAILED if failed else NothingToRunError.exit_code if nothing else 0
        if itself:
            print_document(control_document(judge_self(whole, baseline.rounds)), format)
        elif gate:
            code = print_comparison(comparison, format, verbose, comparison.gate())
        else:
            print_comparison(comparison, format, verbose)
    shows = "shows the verdicts on each case" if itself else "shows this again"
    print_note(f"{ended}: both arms are stored; {again} {shows}")
    return INTERRUPTED if ended == "interrupted" else code
