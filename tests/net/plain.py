"""Records and rows as plain data: numbers, truth values and short tokens, without sentences."""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

Row = tuple[str, dict[str, Any]]
Tables = dict[str, list[Row]]


def summary(parts: Mapping[str, Any]) -> list[Row]:
    """Return of each field of records how many values there are, their sum, and a checksum of their order."""
    values: dict[str, list[Any]] = {}
    for part, held in parts.items():
        _collect(held, part, values)
    values.pop("header.schema", None)  # a file is rewritten as the format goes on, and says the same
    rows = []
    for field, each in sorted(values.items()):
        numbers = [float(one) for one in each if not isinstance(one, str)]
        total = math.fsum(filter(math.isfinite, numbers))
        rows.append((field, as_cells({"count": len(each), "sum": total, "crc32": zlib.crc32(repr(each).encode())})))
    return rows


def _collect(held: Any, field: str, values: dict[str, list[Any]]) -> None:
    """Add the numbers and short tokens in `held` to `values`, by the fields that lead to them, without list indices."""
    if held is None:
        return
    if isinstance(held, str):
        if held.split() == [held]:
            values.setdefault(field, []).append(str(held))
    elif isinstance(held, int | float):
        values.setdefault(field, []).append(held if isinstance(held, bool) else float(held))
    elif names := getattr(held, "__struct_fields__", None):
        for name in names:
            _collect(getattr(held, name), f"{field}.{name}", values)
    elif isinstance(held, Mapping):
        for key, value in held.items():
            _collect(key, f"{field}{{}}", values)
            _collect(value, f"{field}[{key}]" if field == "found" else f"{field}[]", values)
    elif isinstance(held, Iterable):
        for value in held:
            _collect(value, f"{field}[]", values)
    else:
        for name in (each.name for each in fields(held)):
            _collect(getattr(held, name), f"{field}.{name}", values)


def tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a row is a number, a truth value or a short token."""
    plain = as_cells({name: value for name, value in row.items() if not isinstance(value, list | tuple | dict)})
    return {name: value for name, value in plain.items() if not (isinstance(value, str) and " " in value)}


def as_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a row by column."""
    return {str(name): _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a whole number as int, so that none is told from another by its type."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return str(value) if isinstance(value, str) else value if isinstance(value, int) else None


def nested_tables(data: Any, path: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the lists of rows that nested data call tables."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        if key == "tables" and isinstance(value, dict):
            yield from ((f"{path}{name}", rows) for name, rows in value.items() if isinstance(rows, list))
        elif isinstance(value, dict | list):
            yield from nested_tables(value, f"{path}{key} ")


NESTED = {
    "reference.output_norm": "output_reference_norm", "reference.grad_norm": "grad_reference_norm",
    "reference.output_": "output_", "reference.grad_": "grad_", "reference.": "reference_",
    "output.tensors": "outputs", "output.predictions": "predictions", "output.further": "further",
    "output.argmax_": "argmax_", "output.": "output_", "gradient.": "grad_",
}  # fmt: skip
"""How fields of a divergence begin that stand in a part of it, and what they began with before."""


def as_before(row: Row) -> Row:
    """Return a row of records by its field's former name."""
    name = row[0].removeprefix("divergence[].")
    begins = next((begin for begin in NESTED if name.startswith(begin) and name != row[0]), "")
    return (f"divergence[].{NESTED[begins]}{name.removeprefix(begins)}" if begins else row[0]), row[1]
