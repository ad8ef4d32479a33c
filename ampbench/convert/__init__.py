"""Converts stored runs to other programs' formats, each a function from the chosen cases of a run, and back.

*Bencher Metric Format*: benchmark, then measure, then a value and its bounds, if known. Source:
https://bencher.dev/docs/reference/bencher-metric-format with its JSON schema https://bencher.dev/bmf.json.

*JUnit XML*: a test case per case. Elements and attributes are those of junit-10.xsd of Jenkins' xunit plug-in, which
GitLab, GitHub's reporters and Jenkins read. XML has no control characters: they are written as backslash escapes.

*pytest-benchmark*'s JSON, version 5.3 (`plugin.pytest_benchmark_generate_json`, `stats.Stats`, `stats.Metadata`,
`utils.get_commit_info`), read by `pytest-benchmark compare` and github-action-benchmark's tool `pytest`: one of its
rounds is one of ampbench's, and `data` holds the values of the rounds in seconds per step, so `iterations` is 1.

*Parquet*: the frame of `ampbench.load` with columns of the runs; each column has one type.

docs/convert.md lists the fields that each format keeps.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import msgspec

from ampbench.core import stats
from ampbench.core.metrics import COLUMNS, METRICS, Column
from ampbench.errors import NothingToRunError, StoreError, UsageError
from ampbench.judge import frame
from ampbench.records.run import DIRTY
from ampbench.show.rows import Row
from ampbench.store import StoredRun, write_whole

if TYPE_CHECKING:
    import pandas as pd

MEASURES = [column for column in METRICS.values() if column.better is not None]
"""The metrics of `bencher`."""


def defined(row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
    """Yield each of the metrics `columns` that has a finite value in `row`, with the value in its base unit."""
    for column in columns:
        value = row[column.name]
        if value is not None and math.isfinite(value):
            yield column, value


def bencher(_: StoredRun, rows: Sequence[Row]) -> str:
    """Return measured cases; `seconds_median` has the bounds of its interval (95%; asv's 99%)."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        measures = {column.name: {"value": value} for column, value in defined(row, MEASURES)}
        if "seconds_median" in measures and row["seconds_low"] is not None:
            measures["seconds_median"] |= {"lower_value": row["seconds_low"], "upper_value": row["seconds_high"]}
        if measures:
            benchmarks[row["case_id"]] = measures
    return json.dumps(benchmarks, indent=1, allow_nan=False)


_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML 1.0, 2.2 Characters; the carriage return is one, but parsers read it as a newline."""


def _add(parent: ElementTree.Element, tag: str, text: str = "", /, **attributes: str) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, {name: _printable(value) for name, value in attributes.items()})
    element.text = _printable(text) or None
    return element


def _printable(text: str) -> str:
    r"""Return `text` with characters that XML lacks escaped as in Python: `\x1b`, `\ufffe`."""
    return _NOT_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def junit(stored: StoredRun, rows: Sequence[Row]) -> str:
    """Return a run: a failed case is an error, a skipped case skipped, `time` the seconds of its rounds."""
    header, environment = stored.header, stored.header.environment
    seconds = Counter[str]()
    for timing in stored.rounds:
        seconds[timing.case_id] += timing.seconds  # type: ignore[assignment]
    outcomes = Counter(row["outcome"] for row in rows)
    counts = {"tests": f"{len(rows)}", "failures": "0", "errors": f"{outcomes['failed']}"}
    root = ElementTree.Element("testsuites", {"name": "ampbench", **counts})
    suite = _add(
        root,
        "testsuite",
        name=header.run,
        timestamp=header.started_at,
        hostname=environment.host,
        time=f"{sum(seconds.values()):.3f}",
        skipped=f"{outcomes['skipped']}",
        **counts,
    )
    known = {"label": header.label, "commit": header.commit, "torch_version": environment.torch_version}
    properties = _add(suite, "properties")
    for name, value in (known | {"cpu": environment.cpu}).items():
        if value:
            _add(properties, "property", name=name, value=value)
    for row in rows:
        case_id, failure = row["case_id"], stored.failures.get(row["case_id"])
        time = {"time": f"{seconds[case_id]:.3f}"} if case_id in seconds else {}
        test = _add(suite, "testcase", classname=f"ampbench.{row['workload']}", name=case_id, **time)
        text = [f"{column.name}: {value!r} {column.unit}" for column, value in defined(row, METRICS.values())]
        if failure:
            _add(test, "error", "\n".join(failure.frames), type=failure.cause, message=row["reason"] or "")
        elif row["outcome"] == "skipped":
            _add(test, "skipped", type="skipped", message=row["reason"] or "")
        if text and not failure:
            _add(test, "system-out", "\n".join(text))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


RUN_COLUMNS = (
    "started_at", "label", "commit", "committed_at", "program", "ampbench_version", "python_version", "cuda_version",
    "host", "system", "cpu", "cpu_count", "memory_bytes", "threads", "seed",
)  # fmt: skip
"""The columns that are the same in all rows of a run."""
_WHOLE = {"cpu_count", "memory_bytes", "threads", "seed", *(name for name, column in COLUMNS.items() if column.whole)}


def cases_of(files: Sequence[Path]) -> tuple["pd.DataFrame", list[Path]]:
    """Return the cases of the runs in `files`, and the files whose last line is cut.

    A column has one type, whatever its values: text, whole numbers or floats. Raises `NothingToRunError` without any
    case, and as `ampbench.load` does.
    """
    import pandas as pd

    tables, cut = [], []
    for cases in frame.judged(files):
        header = cases.stored.header
        program = header.imported.program if header.imported else "ampbench"
        values: dict[str, Any] = {"program": program, "seed": header.settings.seed}
        values |= {name: getattr(header, name) for name in RUN_COLUMNS if hasattr(header, name)}
        values |= {name: getattr(header.environment, name) or None for name in RUN_COLUMNS if name not in values}
        tables.append(cases.to_pandas().assign(**{name: values[name] for name in RUN_COLUMNS}))
        cut += [cases.stored.path] if cases.stored.cut else []
    table = pd.concat(tables, ignore_index=True)
    types = {str(name): "string" for name in table if table[name].dtype == object}
    types |= {name: "Int64" if name in _WHOLE else "string" for name in (*RUN_COLUMNS, *_WHOLE)}
    if table.empty:
        raise NothingToRunError("there is no case")
    return table.astype(types), cut


def parquet(table: "pd.DataFrame") -> bytes:
    """Return cases as a Parquet file; `UsageError` without pyarrow."""
    try:
        written: bytes = table.to_parquet(engine="pyarrow", index=False)
    except ImportError:
        raise UsageError('Parquet needs pyarrow: pip install "ampbench[parquet]"') from None
    return written


def pytest_benchmark(stored: StoredRun, rows: Sequence[Row]) -> str:
    """Return a run's timed cases with full statistics; all metrics are in each one's `extra_info`.

    Raises `UsageError` where pytest-benchmark, which computes the statistics, is missing.
    """
    try:
        module = import_module("pytest_benchmark.stats")
    except ImportError:
        raise UsageError('--to pytest-benchmark needs pytest-benchmark: pip install "ampbench[pytest]"') from None
    header, commit = stored.header, stored.header.commit or "unversioned"
    names = ("workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format")
    benchmarks = []
    for row in rows:
        case = stored.cases[row["case_id"]]
        rounds = (timing for timing in stored.rounds if timing.case_id == case.case_id and not timing.control)
        values = [stats.round_value(timing.samples, timing.cpu_samples, timing.windows) for timing in rounds]
        theirs = module.Stats()
        for value in values:
            theirs.update(value)
        benchmarks.append(
            {
                # the precisions of one table in one group, which is what `compare` shows together
                "group": "/".join((case.group, case.device, case.phase, case.path)),
                "name": case.case_id,
                "fullname": case.case_id,
                "params": {**case.parameters, **{name: row[name] for name in names}},
                "param": case.precision,
                "extra_info": {column.name: value for column, value in defined(row, METRICS.values())},
                "options": {},
                "stats": {**theirs.as_dict(), "data": values, "iterations": 1},
            }
        )
    document = {
        "machine_info": {"node": header.environment.host, "cpu": {"brand_raw": header.environment.cpu}},
        # "unversioned" and "(unknown)" are its words for none
        "commit_info": {
            "id": commit.removesuffix(DIRTY),
            "time": header.committed_at,
            "author_time": None,
            "dirty": commit.endswith(DIRTY),
            "project": None,
            "branch": "(unknown)",
        },
        "benchmarks": benchmarks,
        "datetime": header.started_at,
        "version": "5.3.1",
    }
    return json.dumps(document, indent=1, allow_nan=False)


FORMATS: Mapping[str, Callable[[StoredRun, Sequence[Row]], str]] = MappingProxyType(
    {"junit": junit, "bencher": bencher, "pytest-benchmark": pytest_benchmark}
)
"""The functions that write the formats of one run by name."""


def written(stored: StoredRun, to: str) -> tuple[str, Counter[str]]:
    """Return a run in the format `to`, and how many cases the format has no place for, by their outcome.

    Only junit has a place for cases without numbers, and imported cases lack the rounds of pytest-benchmark. Raises
    `NothingToRunError` where the format has a place for none, `UsageError` for a run that only explains.
    """
    frame.require_measured(stored)
    kept, lost = [], Counter[str]()
    for row in frame.run_rows(stored):
        outcome = row["outcome"]
        if outcome == "ok" and to == "pytest-benchmark" and row["rounds"] is None:
            outcome = "without rounds"
        if to == "junit" or outcome == "ok":
            kept.append(row)
        else:
            lost[outcome] += 1
    if not kept:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(lost.items())) or "there is none"
        raise NothingToRunError(f"{to} has no place for any case of {stored.header.run}: {counts}; junit has all")
    return FORMATS[to](stored, kept), lost


def read_source(source: Path, remarks: Counter[str]) -> Iterator[StoredRun]:
    """Yield the runs in the results of asv at `source`, a file or a folder.

    `remarks` counts the files per remark on an omission or an assumption. A run's id is made from the time, the machine
    and the file's contents, so that it is the same whenever the same file is read.

    Raises `UsageError` where there is no such file or folder, `StoreError` for the first file that cannot be read, is
    of another format or holds nothing of ampbench.
    """
    from ampbench.convert import asv

    if not source.exists():
        raise UsageError(f"there is no file or folder {source} with results of asv")
    for path in sorted(source.rglob("*.json")) if source.is_dir() else [source]:
        try:
            data = path.read_bytes()
            document = json.loads(data)  # msgspec refuses NaN, which asv writes
            if isinstance(document, dict) and "result_columns" in document:
                yield asv.run_of(path, data, document, remarks)
            elif path.name not in (asv.MACHINE_FILE, asv.BENCHMARKS_FILE):
                raise StoreError("no results of asv")
        except OSError as error:
            raise StoreError(f"cannot read {error.filename}: {error.strerror}") from None
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise StoreError(f"{path}: damaged, or of a format that this ampbench does not read: {error}") from None


def write_runs(runs: Iterable[StoredRun], results: Path) -> tuple[list[Path], int]:
    """Write each new run as `runs/<id>.jsonl` in `results`, or none on errors; return the files and the others' count.

    Raises `StoreError` where they cannot be written.
    """
    by_id = {stored.header.run: stored for stored in runs}
    new = [stored for run, stored in by_id.items() if not (results / "runs" / f"{run}.jsonl").exists()]
    return list(write_whole(new, results).values()), len(by_id) - len(new)
