"""Data as JSON has it: null where a number is undefined or not finite."""

import math

import numpy as np

from ampbench.show.document import finite, json_text


def test_numbers_of_arrays_are_numbers_and_what_is_not_finite_is_null() -> None:
    nested = {"count": np.int64(3), "deep": {"value": (np.float64(0.5), math.inf)}}
    assert finite(nested) == {"count": 3, "deep": {"value": [0.5, None]}}


def test_json_has_null_for_what_is_not_a_finite_number() -> None:
    rows = [{"a": float("nan"), "b": float("inf"), "c": 1.5, "d": None, "e": "µ"}]
    assert json_text(rows) == '[\n{"a": null, "b": null, "c": 1.5, "d": null, "e": "\\u00b5"}\n]\n'
