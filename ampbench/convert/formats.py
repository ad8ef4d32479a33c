"""Formats that other programs read: which numbers of a stored run they take, and how they are written.

*Bencher Metric Format*: benchmark, then measure, then a value and, where known, its bounds. Source:
https://bencher.dev/docs/reference/bencher-metric-format with its JSON schema https://bencher.dev/bmf.json. The measures
are ampbench's metrics in base units, not Bencher's own `latency`, which is in nanoseconds; which way one improves is
for the thresholds in Bencher to say.

*github-action-benchmark*: a JSON list of numbers that should fall. An entry has a name, a unit, a value and, where
there is one, a range and extra text. Source: the README of benchmark-action/github-action-benchmark, "Using Custom
Benchmarks", and `extractCustomBenchmarkResult` of its src/extract.ts, which read the same five keys. Its alarms are
ratios of two values, for one number after the other; hence only metrics that comparisons judge.

*JUnit XML*, as CI servers show test results: a test case per case of a run, or per finding of a comparison. Elements
and attributes are those of junit-10.xsd of Jenkins' xunit plug-in, which is what surefire writes and what GitLab,
GitHub's reporters and Jenkins read. XML has no control characters: they are written as backslash escapes.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ampbench import __version__
from ampbench.core.metrics import COLUMNS, GATED, METRICS, Column
from ampbench.errors import NothingToRunError, UsageError
from ampbench.judge import frame
from ampbench.judge.frame import Array, judged
from ampbench.records.case import matches
from ampbench.records.changes import VERDICT_COLUMNS, Change, ChangeStatus, Comparison
from ampbench.records.labels import case_labels
from ampbench.records.run import Header
from ampbench.show.changes import control_line, reason, remarks
from ampbench.show.comparison import notes
from ampbench.show.rows import Row
from ampbench.store import StoredRun, read_header


@dataclass(frozen=True, slots=True)
class Selected:
    """A run and the rows of the cases chosen from it, in the run's order.

    `columns` are the metrics chosen (None: all that the format tells), `names` what cases are called, by their ids.
    """

    stored: StoredRun
    rows: Sequence[Row]
    columns: Collection[str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> list[Row]:
        """The rows of the cases that are ok, in order."""
        return [row for row in self.rows if row["outcome"] == "ok"]

    def name(self, row: Row) -> str:
        """Return what a row's case is called: its id, unless it has another name."""
        return self.names.get(row["case_id"], row["case_id"])

    def defined(self, row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
        """Yield those of the metrics `columns` that are chosen and finite in `row`, with the value in its base unit."""
        wanted = [column for column in columns if self.columns is None or column.name in self.columns]
        return defined(row, wanted)

    @property
    def timed(self) -> list[Row]:
        """Those of the measured rows that have rounds, which an imported run need not have."""
        owners = {each.case_id for each in self.stored.rounds if not each.control}
        return [row for row in self.measured if row["case_id"] in owners]


def select(
    stored: StoredRun, keyword: str = "", *, columns: Collection[str] | None = None, short: bool = False
) -> Selected:
    """Return the cases of a run whose id matches `keyword`, with the metrics `columns`; `short`: by `show`'s names.

    Raises `NothingToRunError` where none does, `UsageError` where the run only explains.
    """
    frame.require_measured(stored)
    rows = [row for row in frame.run_rows(stored) if matches(keyword, row["case_id"])]
    if not rows:
        said = f" that matches -k {keyword!r}" if keyword else ""
        raise NothingToRunError(f"run {stored.header.run} has no case{said}")
    names: dict[str, str] = {}
    if short:
        names = case_labels(stored.cases[row["case_id"]] for row in rows)
    return Selected(stored, rows, columns, names)


def defined(row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
    """Yield each of the metrics `columns` that has a finite value in `row`, with the value in its base unit."""
    for column in columns:
        value = row[column.name]
        if value is not None and math.isfinite(value):
            yield column, value


MEASURES = [column for column in METRICS.values() if column.better is not None]


def run_json(selected: Selected) -> str:
    """Return a run's measured cases; the bounds of `seconds_median` are those of its interval (95%; of asv's 99%)."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for row in selected.measured:
        measures = {column.name: {"value": value} for column, value in selected.defined(row, MEASURES)}
        bounds = {"lower_value": METRICS["seconds_low"], "upper_value": METRICS["seconds_high"]}
        for name, column in bounds.items():
            for _, value in defined(row, [column] if "seconds_median" in measures else []):
                measures["seconds_median"][name] = value
        if measures:
            benchmarks[selected.name(row)] = measures
    return json.dumps(benchmarks, indent=1, allow_nan=False)


SMALLER = [METRICS[name] for name in GATED if name in METRICS and METRICS[name].better == "lower"]


def smaller_json(selected: Selected) -> str:
    """Return the metrics that should fall, for the tool `customSmallerIsBetter`."""
    header, environment = selected.stored.header, selected.stored.header.environment
    extra = f"run: {header.run}\ntorch: {environment.torch_version}\nhost: {environment.host} ({environment.cpu})"
    entries = []
    for row in selected.measured:
        for column, value in selected.defined(row, SMALLER):
            entry = {"name": f"{selected.name(row)} {column.name}", "unit": column.unit, "value": value}
            low, high = row["seconds_low"], row["seconds_high"]
            if column.name == "seconds_median" and None not in (low, high):
                entry["range"] = f"± {(high - low) / 2:.3g}"  # the action reads a number behind the sign
            rounds = "" if row["rounds"] is None else f"rounds: {row['rounds']}\n"
            entries.append(entry | {"extra": rounds + extra})
    return json.dumps(entries, indent=1, allow_nan=False)


_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML 1.0, 2.2 Characters; the carriage return is one, but parsers read it as a newline."""

_SKIPPED = (ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE)


def run_xml(selected: Selected) -> str:
    """Return a run: a case that failed is an error, one that was skipped is skipped, `time` is what measuring took."""
    stored = selected.stored
    header = stored.header
    environment = header.environment
    seconds: dict[str, float] = {}
    for each in stored.rounds:
        seconds[each.case_id] = seconds.get(each.case_id, 0.0) + each.seconds
    suite = _suite(header.run, timestamp=header.started_at, hostname=environment.host)
    suite.set("time", f"{sum(seconds.get(row['case_id'], 0.0) for row in selected.rows):.3f}")
    _properties(
        suite,
        [
            ("label", header.label),
            ("commit", header.commit or ""),
            ("torch_version", environment.torch_version),
            ("cpu", environment.cpu),
        ],
    )
    for row in selected.rows:
        case_id = row["case_id"]
        test = _test(suite, row["workload"], case_id)
        if case_id in seconds:
            test.set("time", f"{seconds[case_id]:.3f}")
        if row["outcome"] == "failed":
            failure = stored.failures.get(case_id)
            lines = failure.frames if failure else []
            _outcome(test, "error", failure.cause if failure else "failed", row["reason"], lines)
        elif row["outcome"] == "skipped":
            _outcome(test, "skipped", "skipped", row["reason"])
        _output(test, [f"{column.name}: {value!r} {column.unit}" for column, value in defined(row, METRICS.values())])
    return _document(suite)


def comparison_xml(comparison: Comparison) -> str:
    """Return a comparison, a test case per case and metric.

    A regression is a failure, a case that was ok and fails now an error; what is inconclusive or incomparable is
    skipped with the reason, as is a case that one side does not have.
    """
    baseline, candidate = comparison.baseline, comparison.candidate
    suite = _suite(f"{candidate.run} against {baseline.run}")
    differences = [(one.name, f"{one.baseline} -> {one.candidate}") for one in comparison.differences]
    _properties(
        suite,
        [
            ("baseline", baseline.run),
            ("candidate", candidate.run),
            ("interleaved", "yes" if comparison.interleaved else "no"),
            *differences,
        ],
    )
    for finding in comparison.findings:
        test = _test(suite, finding.case.workload, f"{finding.case.case_id} {finding.metric}")
        evidence = _evidence(finding)
        if finding.status is ChangeStatus.REGRESSED:
            kind = "error" if finding.kind == "outcome" else "failure"
            _outcome(test, kind, finding.code, reason(finding), evidence)
        elif finding.status in _SKIPPED:
            _outcome(test, "skipped", finding.code, f"{finding.status}: {reason(finding)}")
            _output(test, evidence)
        else:
            _output(test, [f"{finding.status}: {reason(finding)}", *evidence])
    for side, case_ids in (("baseline", comparison.only_baseline), ("candidate", comparison.only_candidate)):
        for case_id in case_ids:
            test = _test(suite, f"{side} only", case_id)
            _outcome(test, "skipped", "one side", f"only the {side} has this case")
    _output(suite, [control_line(comparison.control), *notes(comparison)])
    return _document(suite)


def _evidence(finding: Change) -> list[str]:
    """Return the numbers of a finding and its remarks, a line each; what is undefined is left out."""
    unit = METRICS[finding.metric].unit if finding.metric in METRICS else ""
    lines = [
        f"{name}: {value!r} {unit}".rstrip()
        for name, value in (("baseline", finding.baseline), ("candidate", finding.candidate))
        if value is not None
    ]
    if finding.change is not None:
        interval = (
            "" if finding.low is None or finding.high is None else f" ({finding.low:+.2%} to {finding.high:+.2%})"
        )
        lines.append(f"change: {finding.change:+.2%}{interval}, threshold {finding.threshold:.2%}")
    return [*lines, *remarks(finding)]


def _suite(name: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element("testsuite", {"name": _printable(name)} | _all_printable(attributes))


def _test(suite: ElementTree.Element, workload: str, name: str) -> ElementTree.Element:
    attributes = {"classname": f"ampbench.{workload}", "name": name}
    return ElementTree.SubElement(suite, "testcase", _all_printable(attributes))


def _outcome(test: ElementTree.Element, kind: str, type: str, message: str, lines: Sequence[str] = ()) -> None:
    element = ElementTree.SubElement(test, kind, _all_printable({"type": type, "message": message}))
    element.text = _printable("\n".join(lines)) or None


def _output(parent: ElementTree.Element, lines: Sequence[str]) -> None:
    said = "\n".join(line for line in lines if line)
    if said:
        ElementTree.SubElement(parent, "system-out").text = _printable(said)


def _properties(suite: ElementTree.Element, pairs: Iterable[tuple[str, str]]) -> None:
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in pairs:
        if value:
            ElementTree.SubElement(properties, "property", _all_printable({"name": name, "value": value}))


def _document(suite: ElementTree.Element) -> str:
    """Return the file around a suite, whose counts are made here."""
    counts = {"tests": len(suite.findall("testcase"))}
    counts |= {
        name: len(suite.findall(f"testcase/{kind}")) for kind, name in (("failure", "failures"), ("error", "errors"))
    }
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    root = ElementTree.Element("testsuites", {"name": "ampbench"} | {name: str(n) for name, n in counts.items()})
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _all_printable(attributes: dict[str, str]) -> dict[str, str]:
    return {name: _printable(value) for name, value in attributes.items()}


def _printable(text: str) -> str:
    r"""Return `text` with each character that XML does not have as Python writes it: `\x1b`, `\ufffe`."""
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


LONGEST = 200


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas, cut where there are too many; "none" where there is none."""
    text = ", ".join(names) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


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
    for file, own in judged(files):
        rows = len(own["case_id"])
        run = {name: np.full(rows, value, dtype=object) for name, value in run_values(read_header(file)).items()}
        tables.append({**own.columns, **run})
        cut += [file] if own.stored.cut else []
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
