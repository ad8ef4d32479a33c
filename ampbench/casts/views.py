"""The tables that a cast pass is seen in, by name."""

from enum import StrEnum


class By(StrEnum):
    """What a row of the table is; the summary has the most telling rows of several."""

    SUMMARY = "summary"
    OP = "op"
    MODULE = "module"
    TENSOR = "tensor"
    CAST = "cast"
    WEIGHT = "weight"
