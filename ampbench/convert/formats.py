"""Formats that other programs read: which numbers of a stored run they take, and how they are written.

*Bencher Metric Format*: benchmark, then measure, then a value and its bounds, if known. Source:
https://bencher.dev/docs/reference/bencher-metric-format with its JSON schema https://bencher.dev/bmf.json.

*github-action-benchmark*: a JSON list of numbers that should fall. Source: the README of
benchmark-action/github-action-benchmark, "Using Custom Benchmarks", and `extractCustomBenchmarkResult` of its
src/extract.ts. Its alarms are ratios of two values, hence only metrics that comparisons judge.

*JUnit XML*: a test case per case of a run, or per change of a comparison. Elements and attributes are those of
junit-10.xsd of Jenkins' xunit plug-in, which GitLab, GitHub's reporters and Jenkins read. XML has no control
characters: they are written as backslash escapes.

*Parquet*: the frame of `ampbench.load`, typed, and columns of the runs.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ampbench import __version__
from ampbench.core.metrics import COLUMNS, GATED, METRICS, Column
from ampbench.errors import NothingToRunError, StoreError, UsageError
from ampbench.judge import frame
from ampbench.judge.frame import Array, judged
from ampbench.records.case import matches
from ampbench.records.changes import OUTCOME, VERDICT_COLUMNS, Change, ChangeStatus, Comparison
from ampbench.records.labels import case_labels
from ampbench.records.run import Header
from ampbench.show.comparison import control_line, notes, reason, remarks
from ampbench.show.rows import Row
from ampbench.store import StoredRun, read_header

MEASURES = [column for column in METRICS.values() if column.better is not None]
"""The metrics of `bencher`."""
SMALLER = [METRICS[name] for name in GATED if name in METRICS and METRICS[name].better == "lower"]
"""The metrics of `github-smaller`."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A run and the rows of the cases chosen from it, in the run's order.

    `columns` are the metrics chosen (None: all of the format), `names` the short names of cases, by their ids.
    """

    stored: StoredRun
    rows: Sequence[Row]
    columns: Collection[str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> list[Row]:
        """The rows of the cases that are ok, in order."""
        return [row for row in self.rows if row["outcome"] == "ok"]

    @property
    def timed(self) -> list[Row]:
        """The measured rows that have rounds, which an imported run may lack."""
        owners = {timing.case_id for timing in self.stored.rounds if not timing.control}
        return [row for row in self.measured if row["case_id"] in owners]

    def name(self, row: Row) -> str:
        """Return the short name of a row's case, or else its id."""
        return self.names.get(row["case_id"], row["case_id"])

    def defined(self, row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
        """Yield the chosen metrics among `columns` that are finite in `row`, with the value in its base unit."""
        return defined(row, (column for column in columns if self.columns is None or column.name in self.columns))


def select(
    stored: StoredRun, keyword: str = "", *, columns: Collection[str] | None = None, short: bool = False
) -> Selected:
    """Return the cases of a run whose id matches `keyword`, with the metrics `columns`; `short`: by `show`'s names.

    Raises `NothingToRunError` where none does, `UsageError` where the run only explains.
    """
    frame.require_measured(stored)
    rows = [row for row in frame.run_rows(stored) if matches(keyword, row["case_id"])]
    if not rows:
        matching = f" that matches -k {keyword!r}" if keyword else ""
        raise NothingToRunError(f"run {stored.header.run} has no case{matching}")
    names = case_labels(stored.cases[row["case_id"]] for row in rows) if short else {}
    return Selected(stored, rows, columns, names)


def defined(row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
    """Yield each of the metrics `columns` that has a finite value in `row`, with the value in its base unit."""
    for column in columns:
        value = row[column.name]
        if value is not None and math.isfinite(value):
            yield column, value


def bencher(selected: Selected) -> str:
    """Return a run's measured cases; the bounds of `seconds_median` are those of its interval (95%; of asv's 99%)."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for row in selected.measured:
        measures = {column.name: {"value": value} for column, value in selected.defined(row, MEASURES)}
        if "seconds_median" in measures and row["seconds_low"] is not None:
            measures["seconds_median"] |= {"lower_value": row["seconds_low"], "upper_value": row["seconds_high"]}
        if measures:
            benchmarks[selected.name(row)] = measures
    return json.dumps(benchmarks, indent=1, allow_nan=False)


def github_smaller(selected: Selected) -> str:
    """Return the metrics that should fall, for the tool `customSmallerIsBetter`."""
    header, environment = selected.stored.header, selected.stored.header.environment
    extra = f"run: {header.run}\ntorch: {environment.torch_version}\nhost: {environment.host} ({environment.cpu})"
    entries = []
    for row in selected.measured:
        rounds = "" if row["rounds"] is None else f"rounds: {row['rounds']}\n"
        for column, value in selected.defined(row, SMALLER):
            entry = {"name": f"{selected.name(row)} {column.name}", "unit": column.unit, "value": value}
            if column.name == "seconds_median" and row["seconds_low"] is not None:
                # the action reads a number behind the sign
                entry["range"] = f"± {(row['seconds_high'] - row['seconds_low']) / 2:.3g}"
            entries.append(entry | {"extra": rounds + extra})
    return json.dumps(entries, indent=1, allow_nan=False)


_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML 1.0, 2.2 Characters; the carriage return is one, but parsers read it as a newline."""


def junit(selected: Selected) -> str:
    """Return a run: a case that failed is an error, one that was skipped is skipped, `time` is what measuring took."""
    stored = selected.stored
    header, environment = stored.header, stored.header.environment
    seconds = defaultdict[str, float](float)
    for timing in stored.rounds:
        seconds[timing.case_id] += timing.seconds
    total = sum(seconds.get(row["case_id"], 0.0) for row in selected.rows)
    suite = _suite(
        header.run,
        {
            "label": header.label,
            "commit": header.commit or "",
            "torch_version": environment.torch_version,
            "cpu": environment.cpu,
        },
        timestamp=header.started_at,
        hostname=environment.host,
        time=f"{total:.3f}",
    )
    for row in selected.rows:
        case_id = row["case_id"]
        took = {"time": f"{seconds[case_id]:.3f}"} if case_id in seconds else {}
        test = _add(suite, "testcase", classname=f"ampbench.{row['workload']}", name=case_id, **took)
        if row["outcome"] == "failed":
            failure = stored.failures.get(case_id)
            frames = "\n".join(failure.frames) if failure else ""
            _add(test, "error", frames, type=failure.cause if failure else "failed", message=row["reason"])
        elif row["outcome"] == "skipped":
            _add(test, "skipped", type="skipped", message=row["reason"])
        _output(test, [f"{column.name}: {value!r} {column.unit}" for column, value in defined(row, METRICS.values())])
    return _document(suite)


def junit_of_comparison(comparison: Comparison) -> str:
    """Return a comparison, a test case per case and metric.

    A regression is a failure, a case that was ok and fails now an error; what is inconclusive or incomparable is
    skipped with the reason, as is a case that one side does not have.
    """
    baseline, candidate = comparison.baseline, comparison.candidate
    suite = _suite(
        f"{candidate.run} against {baseline.run}",
        {
            "baseline": baseline.run,
            "candidate": candidate.run,
            "interleaved": "yes" if comparison.interleaved else "no",
            **{differs.name: f"{differs.baseline} -> {differs.candidate}" for differs in comparison.differences},
        },
    )
    for change in comparison.findings:
        _add_change(suite, change)
    for side, case_ids in (("baseline", comparison.only_baseline), ("candidate", comparison.only_candidate)):
        for case_id in case_ids:
            test = _add(suite, "testcase", classname=f"ampbench.{side} only", name=case_id)
            _add(test, "skipped", type="one side", message=f"only the {side} has this case")
    _output(suite, [control_line(comparison.control), *notes(comparison)])
    return _document(suite)


def _add_change(suite: ElementTree.Element, change: Change) -> None:
    name = f"{change.case.case_id} {change.metric}"
    test = _add(suite, "testcase", classname=f"ampbench.{change.case.workload}", name=name)
    why, evidence = reason(change), _evidence(change)
    if change.status is ChangeStatus.REGRESSED:
        kind = "error" if change.kind == OUTCOME else "failure"
        _add(test, kind, "\n".join(evidence), type=change.code, message=why)
    elif change.status in (ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE):
        _add(test, "skipped", type=change.code, message=f"{change.status}: {why}")
        _output(test, evidence)
    else:
        _output(test, [f"{change.status}: {why}", *evidence])


def _evidence(change: Change) -> list[str]:
    """Return the numbers of a change and its remarks, a line each, without what is undefined."""
    unit = METRICS[change.metric].unit if change.metric in METRICS else ""
    sides = {"baseline": change.baseline, "candidate": change.candidate}
    lines = [f"{name}: {value!r} {unit}".rstrip() for name, value in sides.items() if value is not None]
    if change.change is not None:
        known = change.low is not None and change.high is not None
        interval = f" ({change.low:+.2%} to {change.high:+.2%})" if known else ""
        lines.append(f"change: {change.change:+.2%}{interval}, threshold {change.threshold:.2%}")
    return [*lines, *remarks(change)]


def _suite(name: str, properties: Mapping[str, str], **attributes: str) -> ElementTree.Element:
    """Return a suite without test cases, with the `properties` that are not empty."""
    suite = ElementTree.Element("testsuite", _printable({"name": name, **attributes}))
    parent = _add(suite, "properties")
    for key, value in properties.items():
        if value:
            _add(parent, "property", name=key, value=value)
    return suite


def _add(parent: ElementTree.Element, tag: str, text: str = "", /, **attributes: str) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, _printable(attributes))
    element.text = _printable({"": text})[""] or None
    return element


def _output(parent: ElementTree.Element, lines: Iterable[str]) -> None:
    text = "\n".join(filter(None, lines))
    if text:
        _add(parent, "system-out", text)


def _document(suite: ElementTree.Element) -> str:
    """Return the file around a suite, and count its test cases."""
    paths = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error"}
    counts = {name: str(len(suite.findall(path))) for name, path in paths.items()}
    suite.attrib |= {**counts, "skipped": str(len(suite.findall("testcase/skipped")))}
    root = ElementTree.Element("testsuites", {"name": "ampbench", **counts})
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _printable(texts: Mapping[str, str]) -> dict[str, str]:
    r"""Return `texts` with each character that XML does not have as Python writes it: `\x1b`, `\ufffe`."""
    return {
        name: _NOT_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
        for name, text in texts.items()
    }


LONGEST = 200
"""The most characters of a list of names in a message."""


def read_json(path: Path, program: str) -> tuple[bytes, Any]:
    """Return the bytes of a file of another program and the document in them; raises `StoreError` naming the file."""
    try:
        data = path.read_bytes()
        return data, json.loads(data)  # msgspec refuses NaN, which these programs write
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: no whole JSON, so it was cut or is no file of {program}: {error}") from None


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas, cut where there are too many; "none" where there is none."""
    text = ", ".join(names) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


TEXT, WHOLE, NUMBER = "string", "int64", "double"
_WHOLE = ("cpu_count", "memory_bytes", "threads", "seed")
RUN_COLUMNS: Mapping[str, str] = {
    name: WHOLE if name in _WHOLE else TEXT
    for name in (
        "started_at", "label", "commit", "committed_at", "program", "ampbench_version", "python_version",
        "cuda_version", "host", "system", "cpu", *_WHOLE,
    )
}  # fmt: skip
"""The columns that are the same in all rows of a run, and their types."""


def column_type(name: str) -> str:
    """Return the type of a column: `TEXT`, `WHOLE`, `NUMBER` or "bool"."""
    if name in VERDICT_COLUMNS:
        return {"object": TEXT, "float": NUMBER, "bool": "bool"}[VERDICT_COLUMNS[name]]
    return RUN_COLUMNS.get(name) or (WHOLE if COLUMNS[name].whole else NUMBER if COLUMNS[name].unit else TEXT)


def cases_of(files: Sequence[Path], keyword: str = "") -> tuple[Mapping[str, Array], list[Path]]:
    """Return the columns of the cases of the runs in `files` whose id matches, and the files whose last line is cut.

    Raises `NothingToRunError` where no id matches, and as `ampbench.load` does.
    """
    tables, cut = [], []
    for file, cases in judged(files):
        rows = len(cases["case_id"])
        run = {name: np.full(rows, value, dtype=object) for name, value in run_values(read_header(file)).items()}
        tables.append({**cases.columns, **run})
        cut += [file] if cases.stored.cut else []
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    chosen = np.array([matches(keyword, case_id) for case_id in columns["case_id"].tolist()], dtype=np.bool_)
    if not chosen.any():
        raise NothingToRunError(f"no case matches -k {keyword!r}" if keyword else "there is no case")
    return {name: column[chosen] for name, column in columns.items()}, cut


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
        raise UsageError('Parquet needs pyarrow: pip install "ampbench[parquet]"') from None
    fields, arrays = [], []
    for name, column in columns.items():
        array = pyarrow.array(column, from_pandas=True)  # NaN becomes null
        arrays.append(array.cast(pyarrow.type_for_alias(column_type(name))))
        unit = COLUMNS[name].unit if name in COLUMNS else ""
        fields.append(pyarrow.field(name, arrays[-1].type, metadata={"unit": unit} if unit else None))
    out = pyarrow.BufferOutputStream()
    schema = pyarrow.schema(fields, metadata={"ampbench": __version__})
    write_table(pyarrow.Table.from_arrays(arrays, schema=schema), out)
    written: bytes = out.getvalue().to_pybytes()
    return written
