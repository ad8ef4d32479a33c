"""`ampbench show`: a stored run again."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Argument,
    Format,
    Keyword,
    Limits,
    Results,
    Verbose,
    run_words,
)
from ampbench.cli.printing import OutputFormat, print_document, print_note
from ampbench.core.budget import Budget
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.kinds import KINDS, verb_of
from ampbench.records.run import LATEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ampbench.store import StoredRun


def command(
    *,
    run: Annotated[
        list[str] | None,
        Argument(metavar="[RUN...]", help=f"A run: {A_RUN}. Several, or a fleet: side by side. Default: latest."),
    ] = None,
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    verbose: Verbose = False,
    format: Format,
    budget: Limits,
) -> int:
    """Show a stored run: the table, the advice, skipped cases and why; or the explanation it holds.

    \b
    Examples:
      ampbench show
      ampbench show 20260131T120000Z -k "resnet and training"
      ampbench show -v -k CASE_ID                    everything about one case
      ampbench show latest --json > rows.json
      ampbench show 1f9a3c -v                        a run of ampbench explain casts
      ampbench show cpu.jsonl gpu.jsonl              machines side by side

    \b
    Columns of the table:
      time/step  median over rounds
      speed      times that of fp32 with tf32 off (95% interval, paired round by round)
      memory     peak of one step (times that of fp32)
      error      relative L2 of the output that errs most, against fp64
      verdict    ok; refused: a number over its limit; undecided: why nothing is known
    """
    from ampbench import store
    from ampbench.records.case import matches
    from ampbench.show import studies
    from ampbench.studies.study import study_of

    files = [path for name in run or [LATEST] for path in store.find_runs(name, results, print_note)]
    if len(files) > 1:
        _beside(files, keyword, budget, format, everything=verbose)
        return 0
    stored = store.read_run(files[0])
    matching = [case_id for case_id in stored.cases if matches(keyword, case_id)]
    chosen_cases = [keyword] if keyword in matching else matching
    kind = stored.header.explains
    if not chosen_cases and (not kind or KINDS[kind].of_cases):
        raise NothingToRunError(f"run {stored.header.run} has no case that matches -k {keyword!r}")
    if kind:
        document = studies.document(study_of(kind), stored, chosen_cases, everything=verbose)
        print_document(document, format)
    else:
        _print(stored, chosen_cases, format, budget, run_words(stored.path, results), verbose)
    if stored.cut:
        how = f": ampbench {verb_of(kind)} --resume {run_words(stored.path, results)}"
        go_on = how if stored.header.goes_on else ""
        print_note(f"{stored.path} {store.CUT}{go_on}")
    return 0


def _beside(files: "Sequence[Path]", keyword: str, budget: Budget, format: OutputFormat, *, everything: bool) -> None:
    """Print the matching cases of runs on several machines side by side."""
    from ampbench import store
    from ampbench.judge.machines import document
    from ampbench.records.case import matches

    kept = []
    for stored in [store.read_run(path) for path in dict.fromkeys(files)]:
        if stored.header.explains:
            raise UsageError(store.not_measured(stored.header))
        ids = {case_id for case_id in stored.cases if matches(keyword, case_id)}
        kept.append(replace(stored.narrowed(ids), rounds=[timing for timing in stored.rounds if timing.case_id in ids]))
    if not any(stored.cases for stored in kept):
        raise NothingToRunError(f"no run has a case that matches -k {keyword!r}")
    print_document(document([stored for stored in kept if stored.cases], budget, everything=everything), format)


def _print(
    stored: "StoredRun",
    case_ids: "Sequence[str]",
    format: OutputFormat,
    budget: Budget,
    words: str,
    verbose: bool,
) -> None:
    """Print a run's measurements; `words` name it to `show`."""
    from ampbench.cli.results import print_result
    from ampbench.result import Result
    from ampbench.show.results import case_lines
    from ampbench.show.terminal import make_console, print_lines

    result = Result(stored, budget)
    rows = [row for row in result.rows if row["case_id"] in case_ids]
    if len(case_ids) > 1 or not verbose or format is not OutputFormat.TABLE:
        print_result(result, rows, format, f"ampbench show {words}", "-v", verbose=verbose)
        return
    (case,) = case_ids
    records = [entries.get(case) for entries in (stored.memory, stored.divergence, stored.failures)]
    rounds = [timing for timing in stored.rounds if timing.case_id == case]
    console = make_console()
    print_lines(console, case_lines(rows[0], rounds, records, console.width))
