"""`ampbench report`: stored runs as one HTML page, as a site of pages, or as Markdown."""

from contextlib import nullcontext
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Keyword,
    Limits,
    Results,
    run_argument,
    run_option,
)
from ampbench.cli.printing import print_note, print_text, write_files
from ampbench.errors import CASE_FAILED, StoreError, UsageError

if TYPE_CHECKING:
    from ampbench.report.material import Material
    from ampbench.report.page import Site

REPORTS = "reports"
"""The folder of --results that reports are written to where -o does not say otherwise."""
EXTRA = ("jinja2", "markupsafe", "vl_convert")
"""The modules that the extra `report` brings."""


class ReportFormat(StrEnum):
    """What a report is written in."""

    HTML = "html"
    MARKDOWN = "markdown"


def command(
    *,
    runs: Annotated[
        list[str] | None,
        run_argument(
            "RUN", f"Each {A_RUN}, or a folder of runs. Default: latest, with what explains it; for a site: all runs."
        ),
    ] = None,
    baseline: Annotated[str, run_option("--baseline", "Compare each run with this one.")] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write this file. Default: a page in RESULTS/reports; Markdown is printed.",
        ),
    ] = None,
    site: Annotated[
        Path | None, typer.Option("--site", metavar="DIR", help="Write an index of many runs and a page for each.")
    ] = None,
    format: Annotated[
        ReportFormat, typer.Option("--format", help="A page, or a summary for a pull request or a job.")
    ] = ReportFormat.HTML,
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    budget: Limits,
) -> int:
    """Write a report of stored runs: one HTML file that needs no network, and print its path.

    \b
    Examples:
      ampbench report
      ampbench report latest --baseline main.jsonl -o report.html
      ampbench report latest --baseline main.jsonl --format markdown >> "$GITHUB_STEP_SUMMARY"
      ampbench report --site public
    """
    if site is not None and output is not None:
        raise UsageError("--site and -o contradict each other: a site is a folder of files, -o names one file")
    if site is not None and format is ReportFormat.MARKDOWN:
        raise UsageError("--site and --format markdown contradict each other: a site is made of HTML pages")
    check_installed()
    from ampbench import store
    from ampbench.store.lines import no_garbage_collection

    if not runs:
        store.check_runs(results)
    names = [*(runs or []), *([baseline] if baseline else [])]
    for name in names:
        if not Path(name).expanduser().is_dir():
            store.find_runs(name, results, print_note)  # a name that means nothing is refused before anything is begun
    if format is ReportFormat.HTML:
        from ampbench.report.page import chart_library

        chart_library()  # takes a second in a process of its own, while runs are read
    if site is not None:
        from ampbench.report.page import make_site

        return _write_site(site, make_site(runs or [], results, baseline, keyword, budget))
    from ampbench.report.material import gather

    with no_garbage_collection():
        material = gather(runs or [], results, baseline, keyword, budget)
        text = _text(material, format)
    if format is ReportFormat.MARKDOWN and output is None:
        print_text(text)
        return 0
    path = output or _folder(results / REPORTS) / _name(material)
    write_files({path: text}, links=output is not None)
    for remark in material.remarks:
        print_note(remark)
    print_text(str(path))
    return 0


def check_installed() -> None:
    """Raise `UsageError` where what reports are made with is not installed."""
    if any(find_spec(name) is None for name in EXTRA):
        raise UsageError("a report needs its extra: pip install 'ampbench[report]'")


def _text(material: "Material", format: ReportFormat) -> str:
    if format is ReportFormat.MARKDOWN:
        from ampbench.report.result import make_markdown

        return make_markdown(material)
    from ampbench.report.page import make_page

    return make_page(material)


def _name(material: "Material") -> str:
    """Return the name of a page's file: the newest run on it, how many others, the baseline.

    Runs that explain those that measured do not count.
    """
    runs = [one.stored for one in material.shown] or material.explanations
    others = len(runs) - 1
    more = f"-and-{others}-more" if others else ""
    against = f"-against-{material.baseline.path.stem}" if material.baseline else ""
    return f"{runs[-1].path.stem}{more}{against}.html"


def _write_site(folder: Path, site: "Site") -> int:
    """Write the pages as they are made, the index last, and print its path; exit code 3 where a file was damaged.

    Pages of earlier sites stay, those of the same runs are replaced.
    """
    from ampbench.core.units import counted
    from ampbench.show.terminal import make_console

    console = make_console(stderr=True)
    path = folder
    with console.status("reading") if console.is_terminal else nullcontext() as shown:
        for count, (name, text) in enumerate(site.files, 1):
            path = _folder(folder) / name
            write_files({path: text}, "choose another --site", links=False)
            if shown is not None:
                shown.update(f"{counted(count, 'page')} written")
    for problem in site.problems:
        print_note(problem)
    print_text(str(path))
    return CASE_FAILED if site.problems else 0


def _folder(folder: Path) -> Path:
    """Return `folder`, made where it was not; raises `StoreError` where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}") from None
    return folder
