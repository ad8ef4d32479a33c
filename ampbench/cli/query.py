"""`ampbench query`: SQL over stored runs."""

import datetime
import math
from decimal import Decimal
from typing import Annotated, Any

import typer

from ampbench.base.units import counted
from ampbench.cli import completing
from ampbench.cli.options import A_RUN, DEFAULT_RESULTS, Format, Json, Results, chosen_format
from ampbench.cli.printing import OutputFormat


def command(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the tables cases and runs.")],
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN", help=f"Only these runs: {A_RUN}. Default: all of --results.", autocompletion=completing.runs
        ),
    ] = None,
    results: Results = DEFAULT_RESULTS,
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Ask stored runs in SQL (DuckDB's); the columns of `cases` and `runs` are in docs/query.md.

    \b
    Examples:
      ampbench query "SELECT workload, precision, speedup_vs_fp32 FROM cases WHERE outcome = 'ok'"
      ampbench query "SELECT torch_version, median(seconds_median) FROM cases GROUP BY ALL" --format csv
      ampbench query "DESCRIBE cases" latest
    """
    chosen = chosen_format(format, json)
    from ampbench import store
    from ampbench.cli.printing import print_listing, print_note
    from ampbench.convert.tables import query

    files = [path for name in runs or () for path in store.find_runs(name, results, print_note)]
    if not files:
        store.check_runs(results)
        files = store.measured_files(results)
    answer = query(sql, list(dict.fromkeys(files)))
    rows = [{name: _plain(value) for name, value in row.items()} for row in answer.rows]
    print_listing(rows, answer.columns, chosen, f"no row in {counted(len(files), 'run')}")
    return 0


def _plain(value: Any) -> Any:
    """Return a value of SQL as one that JSON has."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Decimal):
        return _plain(float(value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
