"""`ampbench report`: stored runs as one HTML page, or as a site of pages."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Argument,
    Limits,
    Option,
    Results,
)
from ampbench.cli.printing import print_note, print_text, write_files
from ampbench.errors import CASE_FAILED, StoreError, UsageError

if TYPE_CHECKING:
    from ampbench.core.budget import Budget
    from ampbench.report.material import Material

REPORTS = "reports"
"""The folder in --results for reports without -o."""
EXTRA = ("jinja2", "markupsafe", "vl_convert")
"""The modules that the extra `report` brings."""


def command(
    *,
    runs: Annotated[
        list[str] | None,
        Argument(
            metavar="RUN",
            help=f"Each {A_RUN}, or a folder of runs. Default: latest, with what explains it; for a site: all runs.",
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
    check_installed()
    from ampbench import store
    from ampbench.store.lines import no_garbage_collection

    if not runs:
        store.check_runs(results)
    if site is not None:
        return _write_site(site, runs or [], results, baseline, budget)
    from ampbench.report.material import gather
    from ampbench.report.page import make_page

    with no_garbage_collection():
        material = gather(runs or [], results, baseline, budget)
        page = make_page(material)
    path = output or _folder(results / REPORTS) / _name(material)
    write_files({path: page}, links=output is not None)
    for remark in material.remarks:
        print_note(remark)
    print_text(str(path))
    return 0


def check_installed() -> None:
    """Raise `UsageError` where the extra `report` is not installed."""
    if any(find_spec(name) is None for name in EXTRA):
        raise UsageError("a report needs its extra: pip install 'ampbench[report]'")


def _name(material: "Material") -> str:
    """Return the name of a page's file: the newest run on it, how many others, the baseline.

    Runs that explain shown ones do not count.
    """
    runs = [run.stored for run in material.shown] or material.explanations
    others = len(runs) - 1
    more = f"-and-{others}-more" if others else ""
    against = f"-against-{material.baseline.path.stem}" if material.baseline else ""
    return f"{runs[-1].path.stem}{more}{against}.html"


def _write_site(folder: Path, runs: list[str], results: Path, baseline: str, budget: "Budget") -> int:
    """Write the pages one by one, the index last, and print its path; return 3 where a file was damaged.

    Earlier pages stay, unless their run has a new one.
    """
    from ampbench.report.page import make_site

    path, problems = folder, list[str]()
    for name, text in make_site(runs, results, baseline, budget, problems.append):
        path = _folder(folder) / name
        write_files({path: text}, "choose another --site", links=False)
    for problem in problems:
        print_note(problem)
    print_text(str(path))
    return CASE_FAILED if problems else 0


def _folder(folder: Path) -> Path:
    """Return `folder`, created if needed; raise `StoreError` where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}") from None
    return folder
