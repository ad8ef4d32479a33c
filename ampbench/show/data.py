"""Data for machines: CSV and JSON, with nothing where a number is undefined or not finite."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How text begins that spreadsheets run."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?\s?[%\w]*", re.IGNORECASE)
"""A number that was formatted already, with its unit."""


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV with a header line; None and NaN are empty cells.

    Text that a spreadsheet would take for a formula has an apostrophe before it
    (owasp.org/www-community/attacks/CSV_Injection).
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(_cell, headers))
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return stream.getvalue()


def _cell(value: Any) -> Any:
    found = plain(value)
    if isinstance(found, str) and found.startswith(FORMULA) and not _NUMBER.fullmatch(found):
        return f"'{found}"
    return "" if found is None else found


def json_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a JSON list of flat objects, one a line; null where a value is undefined or not finite."""
    lines = [json.dumps({name: plain(value) for name, value in row.items()}, ensure_ascii=False) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"


def plain(value: Any) -> Any:
    """Return a cell of a frame as a plain Python value: None for null, NaN and infinities, int for whole integers."""
    if value is None or isinstance(value, str | bool | int | list | dict):
        return value
    if hasattr(value, "item"):  # a NumPy scalar
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None  # pandas' NA and NaT


def record_data(record: msgspec.Struct) -> dict[str, Any]:
    """Return a stored record, and all records in it, as JSON has them."""
    data: dict[str, Any] = msgspec.to_builtins(record, enc_hook=dict)
    return data


def json_document(document: Any) -> str:
    """Return nested data as indented JSON."""
    return json.dumps(document, ensure_ascii=False, indent=2, default=str)


def finite(value: Any) -> Any:
    """Return nested data with None for numbers that JSON does not have, and NumPy's scalars as plain values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return plain(value) if hasattr(value, "item") else value
