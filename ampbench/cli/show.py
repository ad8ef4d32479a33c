"""`ampbench show`: a stored run again."""

from typing import Annotated

import typer

from ampbench.advice import Budget
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    Format,
    Json,
    Keyword,
    MaxError,
    MaxFlushedShare,
    MaxGradientError,
    MinArgmaxAgreement,
    OutputFormat,
    Results,
    chosen_budget,
    chosen_format,
)
from ampbench.errors import NothingToRunError, UnknownNameError, UsageError


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id, a unique prefix of one, latest, or a path.")],
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    case: Annotated[str, typer.Option("--case", metavar="ID", help="Everything known of one case.")] = "",
    details: Annotated[bool, typer.Option("--details", help="Everything known of each case selected.")] = False,
    format: Format = OutputFormat.TABLE,
    json: Json = False,
    max_error: MaxError = Budget.output_rel_l2,
    min_argmax_agreement: MinArgmaxAgreement = Budget.argmax_agreement,
    max_gradient_error: MaxGradientError = Budget.grad_rel_l2,
    max_flushed_share: MaxFlushedShare = Budget.grad_flushed_share,
) -> int:
    """Show a stored run: the table, the advice, what was skipped and why.

    \b
    Examples:
      ampbench show latest
      ampbench show 20260131T120000Z -k "resnet and training" --max-error 5e-3
      ampbench show latest --json > rows.json
    """
    chosen = chosen_format(format, json)
    budget = chosen_budget(max_error, min_argmax_agreement, max_gradient_error, max_flushed_share)
    from ampbench import planning, store
    from ampbench.cli.printing import make_console, print_lines, print_note
    from ampbench.cli.results import print_result, run_rows

    stored = store.read_run(store.find_run(run, results))
    if case and case not in stored.cases:
        raise UnknownNameError("case", case, stored.cases)
    rows = [row for row in run_rows(stored) if planning.matches(keyword, row["case_id"])]
    rows = [row for row in rows if not case or row["case_id"] == case]
    if not rows:
        raise NothingToRunError(f"run {stored.header.run} has no case that matches -k {keyword!r}")
    if not (case or details):
        print_result(stored, rows, chosen, budget)
    elif chosen is not OutputFormat.TABLE:
        raise UsageError("--case and --details are for reading: --format json gives every column of the cases selected")
    else:
        from ampbench.cli.details import detail_lines

        print_lines(make_console(), detail_lines(stored, rows))
    if stored.cut:
        print_note(f"{stored.path} ends in a cut line, which was left out: ampbench run --resume {stored.header.run}")
    return 0
