"""Nested data as JSON whose long lists have a line per item."""

import json
import math

import numpy as np

from ampbench.show.data import json_object, json_text


def test_lists_have_a_line_per_item_and_all_else_one_per_name() -> None:
    text = json_object({"said": "–", "rows": [{"a": 1}, {"a": math.nan}], "none": []})
    assert text.splitlines() == ["{", '"said": "–",', '"rows": [', '{"a": 1},', '{"a": null}', "],", '"none": []', "}"]


def test_numbers_of_arrays_are_numbers_and_what_is_not_finite_is_null() -> None:
    text = json_object({"count": np.int64(3), "deep": {"value": (np.float64(0.5), math.inf)}})
    assert json.loads(text) == {"count": 3, "deep": {"value": [0.5, None]}}


def test_json_has_null_for_what_is_not_a_finite_number() -> None:
    rows = [{"a": float("nan"), "b": float("inf"), "c": 1.5, "d": None, "e": "µ"}]
    assert json_text(rows) == '[\n{"a": null, "b": null, "c": 1.5, "d": null, "e": "µ"}\n]\n'
