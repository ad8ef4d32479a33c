"""Runs as a Parquet file, by pyarrow, which nothing else needs.

A row is a case. Its columns are those of `ampbench.load`, then those of the run's header and environment: text, whole
numbers and numbers in base units. What is undefined, None or NaN there, is null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ampbench import __version__
from ampbench.core.keywords import matches
from ampbench.core.metrics import COLUMNS
from ampbench.errors import NothingToRunError, UsageError
from ampbench.judge.frame import Array, judged
from ampbench.records.run import Header
from ampbench.records.verdict import VERDICT_COLUMNS
from ampbench.store import read_header

NO_PYARROW = 'Parquet needs pyarrow: pip install "ampbench[parquet]"'
TEXT, WHOLE, NUMBER = "string", "int64", "double"

RUN_COLUMNS: Mapping[str, str] = {
    "started_at": TEXT,
    "label": TEXT,
    "commit": TEXT,
    "committed_at": TEXT,
    "program": TEXT,
    "ampbench_version": TEXT,
    "python_version": TEXT,
    "cuda_version": TEXT,
    "host": TEXT,
    "system": TEXT,
    "cpu": TEXT,
    "cpu_count": WHOLE,
    "memory_bytes": WHOLE,
    "threads": WHOLE,
    "seed": WHOLE,
}
"""The columns that are the same in all rows of a run, and their types."""


def column_type(name: str) -> str:
    """Return the type of a column: `TEXT`, `WHOLE`, `NUMBER` or "bool"."""
    if name in VERDICT_COLUMNS:
        return {"object": TEXT, "float": NUMBER, "bool": "bool"}[VERDICT_COLUMNS[name]]
    return RUN_COLUMNS.get(name) or (WHOLE if COLUMNS[name].whole else NUMBER if COLUMNS[name].unit else TEXT)


@dataclass(frozen=True, slots=True)
class Cases:
    """The columns of the cases of some runs, one after the other, and the files whose last line is cut."""

    columns: Mapping[str, Array]
    cut: Sequence[Path]

    def matching(self, keyword: str) -> "Cases":
        """Return the cases whose id matches; raises `NothingToRunError` where none does."""
        chosen = np.array([matches(keyword, case_id) for case_id in self.columns["case_id"].tolist()], dtype=np.bool_)
        if not chosen.any():
            raise NothingToRunError(f"no case matches -k {keyword!r}" if keyword else "there is no case")
        return Cases({name: column[chosen] for name, column in self.columns.items()}, self.cut)


def cases_of(files: Sequence[Path]) -> Cases:
    """Return the cases of the runs in `files`, at least one file; raises as `ampbench.load` does."""
    tables, cut = [], []
    for file, frame in judged(files):
        rows = len(frame["case_id"])
        run = {name: np.full(rows, value, dtype=object) for name, value in run_values(read_header(file)).items()}
        tables.append({**frame.columns, **run})
        cut += [file] if frame.stored.cut else []
    return Cases({name: np.concatenate([table[name] for table in tables]) for name in tables[0]}, cut)


def run_values(header: Header) -> dict[str, Any]:
    """Return the value of each of `RUN_COLUMNS` for a run."""
    values = {"program": header.imported.program if header.imported else "ampbench", "seed": header.settings.seed}
    values |= {name: getattr(header, name) for name in RUN_COLUMNS if hasattr(header, name)}
    return {name: values[name] if name in values else getattr(header.environment, name) or None for name in RUN_COLUMNS}


def parquet(columns: Mapping[str, Array]) -> bytes:
    """Return cases as a Parquet file, with the unit of each column in its metadata; `UsageError` without pyarrow."""
    try:
        import pyarrow
        from pyarrow.parquet import write_table
    except ImportError:
        raise UsageError(NO_PYARROW) from None
    fields, arrays = [], []
    for name, column in columns.items():
        type = pyarrow.type_for_alias(column_type(name))
        array = pyarrow.array(column, from_pandas=True)  # NaN becomes null
        arrays.append(array.cast(type))
        unit = COLUMNS[name].unit if name in COLUMNS else ""
        fields.append(pyarrow.field(name, type, metadata={"unit": unit} if unit else None))
    schema = pyarrow.schema(fields, metadata={"ampbench": __version__})
    out = pyarrow.BufferOutputStream()
    write_table(pyarrow.Table.from_arrays(arrays, schema=schema), out)
    written: bytes = out.getvalue().to_pybytes()
    return written
