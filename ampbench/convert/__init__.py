"""Stored runs as other programs' formats, each a function from a selection to text, and (`native`) the way back.

docs/convert.md says what each format keeps and loses.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from ampbench.convert import formats, pytest_benchmark
from ampbench.convert.formats import Selected, select

__all__ = ["FORMATS", "Format", "Selected", "select"]


class Format(NamedTuple):
    """The function that writes a format, and the property of `Selected` with the cases that it has a place for."""

    write: Callable[[Selected], str]
    cases: Literal["rows", "measured", "timed"] = "measured"


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "junit": Format(formats.junit, "rows"),
        "github-smaller": Format(formats.github_smaller),
        "bencher": Format(formats.bencher),
        "pytest-benchmark": Format(pytest_benchmark.run_json, "timed"),
    }
)
"""The formats of one run by name."""
