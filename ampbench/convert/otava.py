"""Apache Otava: runs in the order of time as a CSV, a column per case and metric, and the YAML that names the columns.

Source: Otava 0.8.0, `importer.CsvImporter` and `test_config.create_csv_test_config`. `direction` is 1 where higher is
better, else -1. Otava refuses an empty cell, and a NaN silences the series that it stands in; so a column with gaps
stays in the CSV, its cells empty, and is not among the metrics of the YAML.
"""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ampbench.convert.selection import Selected, defined
from ampbench.metrics import GATED, METRICS

TIME = "time"
ATTRIBUTES = ("run", "commit", "version", "host")
"""`commit` and `version` (torch's) are names Otava knows: `--since-commit`, `--since-version`."""

_TRACKED = [METRICS[name] for name in GATED if name in METRICS]
_Column = tuple[str, str]  # case id, metric


def series_csv(series: Sequence[Selected]) -> str:
    """Return the runs as CSV, the oldest first: time, attributes, a column per case and metric that is ever defined.

    The metrics are those that comparisons judge. A case that failed or was skipped leaves its cells empty.
    """
    found = _values(series)
    columns = _columns(found)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([TIME, *ATTRIBUTES, *(_name(column) for column in columns)])
    for selected, values in sorted(zip(series, found, strict=True), key=lambda pair: _time(pair[0])):
        header = selected.stored.header
        attributes = (header.run, header.commit or "", header.environment.torch_version, header.environment.host)
        cells = [repr(values[column]) if column in values else "" for column in columns]
        writer.writerow([_time(selected).isoformat(timespec="seconds"), *attributes, *cells])
    return stream.getvalue()


def settings_yaml(series: Sequence[Selected], csv_file: Path) -> str:
    """Return Otava's configuration for the CSV at `csv_file`, whose path it holds as given: one test of that name."""
    gaps = set(gapped(series))
    lines = [
        "tests:",
        f"  {_quoted(csv_file.stem)}:",
        "    type: csv",
        f"    file: {_quoted(str(csv_file))}",
        f"    time_column: {TIME}",
        f"    attributes: [{', '.join(ATTRIBUTES)}]",
    ]
    metrics = []
    for column in _columns(_values(series)):
        name = _name(column)
        if name not in gaps:
            direction = 1 if METRICS[column[1]].better == "higher" else -1
            metrics.append(f"      {_quoted(name)}: {{direction: {direction}, scale: 1}}")
    return "\n".join([*lines, "    metrics:" if metrics else "    metrics: {}", *metrics]) + "\n"


def gapped(series: Sequence[Selected]) -> list[str]:
    """Return the columns of `series_csv` that have no value in some run."""
    found = _values(series)
    return [_name(column) for column in _columns(found) if not all(column in values for values in found)]


def remarks(series: Sequence[Selected]) -> list[str]:
    """Return what Otava will not see in the series: columns with gaps, and that hosts differ."""
    said = []
    if gaps := gapped(series):
        said.append(
            f"not in every run, so not among the metrics of the configuration: {len(gaps)} of the columns, "
            f"such as {gaps[0]}"
        )
    hosts = sorted({one.stored.header.environment.host for one in series})
    if len(hosts) > 1:
        said.append(f"runs of several hosts ({', '.join(hosts)}): a step in time may be the machine's")
    return said


def _values(series: Sequence[Selected]) -> list[dict[_Column, float]]:
    return [
        {(row["case_id"], column.name): value for row in one.measured for column, value in defined(row, _TRACKED)}
        for one in series
    ]


def _columns(found: Sequence[dict[_Column, float]]) -> list[_Column]:
    return list(dict.fromkeys(column for values in found for column in values))


def _name(column: _Column) -> str:
    return " ".join(column)


def _time(selected: Selected) -> datetime:
    return datetime.fromisoformat(selected.stored.header.started_at).astimezone(UTC)


def _quoted(text: str) -> str:
    """Return `text` as a double-quoted YAML scalar of printable ASCII alone (YAML 1.2.2, 5.7 Escaped Characters)."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else f"\\U{ord(character):08x}"
