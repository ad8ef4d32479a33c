"""`ampbench show` and `report`: stored runs on the terminal, as an HTML page, or as a site of pages."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ampbench import store
from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Argument,
    Format,
    Keyword,
    Limits,
    Option,
    Results,
    Verbose,
    run_words,
)
from ampbench.cli.printing import print_document, print_note, print_text, write_file
from ampbench.errors import CASE_FAILED, NothingToRunError, StoreError, UsageError
from ampbench.records.case import matches
from ampbench.records.kinds import KINDS, verb_of
from ampbench.records.run import LATEST
from ampbench.show import studies
from ampbench.studies.study import study_of

if TYPE_CHECKING:
    from ampbench.report.material import Material


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
      ampbench show -v -k CASE_ID                  all of a case, explained
      ampbench show 1f9a3c -v                      a run of ampbench explain casts
      ampbench show cpu.jsonl gpu.jsonl            machines side by side

    \b
    Columns of the table:
      time/step  median over rounds
      speed      times that of fp32 with tf32 off (95% interval)
      memory     peak of one step (times that of fp32)
      error      relative L2 of the output that errs most, against fp64
      verdict    ok; refused: a number over its limit; undecided: what is missing
    "Error over spread" divides an output's error by how much inputs change it.
    """
    from ampbench.judge import machines
    from ampbench.result import Result

    files = [path for name in run or [LATEST] for path in store.find_runs(name, results, print_note)]
    if len(files) > 1:  # machines side by side
        kept = []
        for stored in [store.read_run(path) for path in dict.fromkeys(files)]:
            if stored.header.explains:
                raise UsageError(store.not_measured(stored.header))
            ids = {case_id for case_id in stored.cases if matches(keyword, case_id)}
            kept += [stored.narrowed(ids)] if ids else []
        if not kept:
            raise NothingToRunError(f"no run has a case that matches -k {keyword!r}")
        print_document(machines.document(kept, budget, everything=verbose), format)
        return 0
    stored = store.read_run(files[0])
    matching = [case_id for case_id in stored.cases if matches(keyword, case_id)]
    chosen_cases = [keyword] if keyword in matching else matching
    kind = stored.header.explains
    if not chosen_cases and (not kind or KINDS[kind].of_cases):
        raise NothingToRunError(f"run {stored.header.run} has no case that matches -k {keyword!r}")
    if kind:
        document = studies.document(study_of(kind), stored, chosen_cases, everything=verbose)
    else:
        again = f"ampbench show {run_words(stored.path, results)}"
        document = Result(stored, budget).document(chosen_cases, again, verbose=verbose)
    print_document(document, format)
    if stored.cut:
        how = f": ampbench {verb_of(kind)} --resume {run_words(stored.path, results)}"
        go_on = how if stored.header.goes_on else ""
        print_note(f"{stored.path} {store.CUT}{go_on}")
    return 0


REPORTS = "reports"
"""The folder in --results for reports without -o."""


def report(
    *,
    runs: Annotated[
        list[str] | None,
        Argument(
            metavar="[RUN...]",
            help=f"A run: {A_RUN}. Or a folder. Default: latest, with what explains it; for a site: all runs.",
        ),
    ] = None,
    baseline: Annotated[str, Option(metavar="RUN", help="Compare each run with this one.")] = "",
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write this file. Default: a page in RESULTS/reports.",
        ),
    ] = None,
    site: Annotated[
        Path | None, Option("--site", metavar="DIR", help="Write an index of many runs and a page for each.")
    ] = None,
    results: Results = DEFAULT_RESULTS,
    budget: Limits,
) -> int:
    """Write a report of stored runs: one HTML file that needs no network, and print its path.

    \b
    Examples:
      ampbench report
      ampbench report latest --baseline main.jsonl -o report.html
      ampbench report --site public
    """
    if site is not None and output is not None:
        raise UsageError("--site and -o contradict each other: a site is a folder of files, -o names one file")
    if any(find_spec(name) is None for name in ("jinja2", "markupsafe", "vl_convert")):
        raise UsageError("a report needs its extra: pip install 'ampbench[report]'")

    if not runs:
        store.check_runs(results)
    from ampbench.report.material import gather
    from ampbench.report.page import make_page, make_site

    if site is not None:  # pages one by one, the index last; earlier pages stay, unless their run has a new one
        path, problems = site, list[str]()
        for name, text in make_site(runs or [], results, baseline, budget, problems.append):
            path = _folder(site) / name
            write_file(path, text, "choose another --site", links=False)
        for problem in problems:
            print_note(problem)
        print_text(str(path))
        return CASE_FAILED if problems else 0
    with store.no_garbage_collection():
        material = gather(runs or [], results, baseline, budget)
        page = make_page(material)
    path = output or _folder(results / REPORTS) / _name(material)
    write_file(path, page, links=output is not None)
    for remark in material.remarks:
        print_note(remark)
    print_text(str(path))
    return 0


def _name(material: "Material") -> str:
    """Return the name of a page's file: the newest run on it, how many others, the baseline.

    Runs that explain shown ones do not count.
    """
    runs = [run.stored for run in material.shown] or material.explanations
    others = len(runs) - 1
    more = f"-and-{others}-more" if others else ""
    against = f"-against-{material.baseline.path.stem}" if material.baseline else ""
    return f"{runs[-1].path.stem}{more}{against}.html"


def _folder(folder: Path) -> Path:
    """Return `folder`, created if needed; raise `StoreError` where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}") from None
    return folder
