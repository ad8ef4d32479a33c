"""Runs as tables of other libraries: Parquet, by pyarrow, and SQL, by DuckDB; neither is needed for anything else.

A table of cases has the columns of `ampbench.load`: text, whole numbers and numbers in base units. What is undefined,
None or NaN there, is null.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from ampbench import __version__
from ampbench.base.keywords import matches
from ampbench.base.metrics import COLUMNS
from ampbench.errors import NothingToRunError, UnknownNameError, UsageError
from ampbench.judge.frame import COUNTS, Columns, file_columns, framed
from ampbench.records.run import Header
from ampbench.store import read_header

NO_PYARROW = 'Parquet needs pyarrow: pip install "ampbench[parquet]"'
NO_DUCKDB = 'ampbench query needs DuckDB: pip install "ampbench[query]"'
TEXT, WHOLE, NUMBER = "VARCHAR", "BIGINT", "DOUBLE"


def column_type(name: str) -> str:
    """Return what a column of cases holds: `TEXT`, `WHOLE` or `NUMBER`."""
    return WHOLE if name in COUNTS else NUMBER if COLUMNS[name].unit else TEXT


@dataclass(frozen=True, slots=True)
class Cases:
    """The columns of the cases of some runs, one after the other, and the files whose last line is cut."""

    columns: Columns
    cut: Sequence[Path]

    def matching(self, keyword: str) -> "Cases":
        """Return the cases whose id matches; raises `NothingToRunError` where none does."""
        chosen = np.array([matches(keyword, case_id) for case_id in self.columns["case_id"].tolist()], dtype=np.bool_)
        if not chosen.any():
            raise NothingToRunError(f"no case matches -k {keyword!r}" if keyword else "there is no case")
        return Cases({name: column[chosen] for name, column in self.columns.items()}, self.cut)


def cases_of(files: Sequence[Path]) -> Cases:
    """Return the cases of the runs in `files`, of which there is one; raises as `ampbench.load` does."""
    read = {file: file_columns(file) for file in files}
    columns = {name: np.concatenate([found[name] for found, _ in read.values()]) for name in COLUMNS}
    return Cases(columns, [file for file, (_, cut) in read.items() if cut])


def parquet(columns: Columns) -> bytes:
    """Return cases as a Parquet file, with the unit of each column in its metadata; `UsageError` without pyarrow."""
    try:
        import pyarrow
        from pyarrow.parquet import write_table
    except ImportError:
        raise UsageError(NO_PYARROW) from None
    types = {TEXT: pyarrow.string(), WHOLE: pyarrow.int64(), NUMBER: pyarrow.float64()}
    fields, arrays = [], []
    for name, column in columns.items():
        type = types[column_type(name)]
        array = pyarrow.array(column, from_pandas=True)  # NaN becomes null
        arrays.append(array.cast(type))
        unit = COLUMNS[name].unit
        fields.append(pyarrow.field(name, type, metadata={"unit": unit} if unit else None))
    schema = pyarrow.schema(fields, metadata={"ampbench": __version__})
    out = pyarrow.BufferOutputStream()
    write_table(pyarrow.Table.from_arrays(arrays, schema=schema), out)
    written: bytes = out.getvalue().to_pybytes()
    return written


RUNS: Mapping[str, str] = {
    "run": TEXT,
    "started_at": TEXT,
    "label": TEXT,
    "commit": TEXT,
    "committed_at": TEXT,
    "program": TEXT,
    "ampbench_version": TEXT,
    "torch_version": TEXT,
    "python_version": TEXT,
    "cuda_version": TEXT,
    "host": TEXT,
    "system": TEXT,
    "cpu": TEXT,
    "cpu_count": WHOLE,
    "memory_bytes": WHOLE,
    "threads": WHOLE,
    "rounds": WHOLE,
    "seed": WHOLE,
    "path": TEXT,
}
"""The columns of the table of runs, as what."""


def run_row(header: Header, path: Path) -> dict[str, Any]:
    """Return what the table of runs has of one, from the header of its file: a value for each of `RUNS`."""
    environment, settings = header.environment, header.settings
    told = {
        "program": header.imported.program if header.imported else "ampbench",
        "rounds": settings.rounds,
        "seed": settings.seed,
        "path": str(path),
    }
    own = {name: getattr(header, name) for name in RUNS if name not in told and hasattr(header, name)}
    return {name: (own | told)[name] if name in own | told else getattr(environment, name) or None for name in RUNS}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query returns: the names of its columns, each once, and its rows."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


_NO_COLUMN = re.compile(r'[Cc]olumn "(.+?)" not found|have a column named "(.+?)"')
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
_OFFERED = re.compile(r"Did you mean|Candidate (?:bindings|functions)|LINE \d+:")
"""From where DuckDB's message goes on with names that it knows, and with the query."""


def query(sql: str, files: Sequence[Path]) -> Answer:
    """Return what one SELECT answers over the tables `cases` and `runs` of the runs in `files`.

    The database is in memory and sees no file, no network and no variable of this process. Raises `UsageError` for
    what is no single SELECT, or wrong, `UnknownNameError` for a table or column that there is not, and as
    `ampbench.load` does.
    """
    try:
        import duckdb
    except ImportError:
        raise UsageError(NO_DUCKDB) from None
    with duckdb.connect(":memory:", config={"enable_external_access": "false"}) as database:
        _check(database, duckdb, sql)
        frames = {"cases": framed(cases_of(files).columns), "runs": _runs(files)}
        types = {"cases": {name: column_type(name) for name in COLUMNS}, "runs": RUNS}
        for table, columns in types.items():
            database.register("given", frames[table])
            defined = ", ".join(f'"{name}" {type}' for name, type in columns.items())
            database.execute(f"CREATE TABLE {table} ({defined})")
            database.execute(f"INSERT INTO {table} SELECT * FROM given")
            database.unregister("given")
        database.execute("SET python_enable_replacements = false; SET lock_configuration = true")
        try:
            found = database.execute(sql)
            names = _each_once([one[0] for one in found.description])
            return Answer(names, [dict(zip(names, row, strict=True)) for row in found.fetchall()])
        except duckdb.Error as error:
            raise _wrong(str(error), types) from None


def _check(database: Any, duckdb: Any, sql: str) -> None:
    """Raise `UsageError` unless `sql` is one SELECT, before any run is read."""
    try:
        statements = database.extract_statements(sql)
    except duckdb.Error as error:
        raise _wrong(str(error), {}) from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("give one SELECT: a query reads, and what it would write is nowhere kept")


def _runs(files: Sequence[Path]) -> Any:
    import pandas as pd

    rows = [run_row(read_header(file), file) for file in files]
    return pd.DataFrame(
        {
            name: pd.array([row[name] for row in rows], dtype="Int64") if type == WHOLE
            else pd.Series([row[name] for row in rows], dtype=object)
            for name, type in RUNS.items()
        }
    )  # fmt: skip


def _each_once(names: Sequence[str]) -> list[str]:
    """Return names of columns, a second one of a name numbered: rows for machines have each once."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        found.append(name if name not in found else next(one for one in numbered if one not in (*names, *found)))
    return found


def _wrong(message: str, tables: Mapping[str, Mapping[str, str]]) -> UsageError:
    """Return DuckDB's complaint as one of ours, in a line, with the nearest names that there are."""
    said = " ".join(_OFFERED.split(message)[0].split())
    if tables and (column := _NO_COLUMN.search(said)):
        return UnknownNameError("column", column[1] or column[2], list(dict.fromkeys(chain(*tables.values()))))
    if tables and (table := _NO_TABLE.search(said)):
        return UnknownNameError("table", table[1], list(tables))
    return UsageError(f"the query cannot be answered: {said.rstrip('!')}")
