"""Bencher Metric Format, against the documented shape: benchmark, measure, a value and optional bounds."""

import msgspec
from converted_runs import BF16, CASE, HOSTILE, TEXT, mixed_run, named_run, stored_run
from hypothesis import given

from ampbench.convert import Selected, formats, select


class Metric(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A metric as https://bencher.dev/bmf.json has it, and strictly no more."""

    value: float
    lower_value: float | msgspec.UnsetType = msgspec.UNSET
    upper_value: float | msgspec.UnsetType = msgspec.UNSET


def read(selected: Selected) -> dict[str, dict[str, Metric]]:
    return msgspec.json.decode(formats.run_json(selected), type=dict[str, dict[str, Metric]])


def test_a_run_has_a_benchmark_per_measured_case_with_its_metrics_as_measures() -> None:
    found = read(mixed_run())
    assert list(found) == [CASE.case_id, BF16.case_id]
    measures = found[CASE.case_id]
    assert measures["seconds_median"].value == 1.1e-3
    assert measures["peak_memory_bytes"].value == 4096
    assert measures["output_rel_l2"].value == 2e-3
    assert measures["items_per_second"].value == 8 / 1.1e-3


def test_the_bounds_of_the_time_are_those_of_its_interval() -> None:
    selected = mixed_run()
    row = selected.rows[0]
    time = read(selected)[CASE.case_id]["seconds_median"]
    assert (time.lower_value, time.upper_value) == (row["seconds_low"], row["seconds_high"])
    assert time.lower_value < time.value < time.upper_value


def test_a_time_without_interval_has_no_bounds_and_a_missing_number_no_measure() -> None:
    measures = read(select(stored_run([(CASE, [1e-3])], peak_bytes=None)))[CASE.case_id]
    assert measures["seconds_median"] == Metric(1e-3)
    assert "peak_memory_bytes" not in measures
    assert "grad_rel_l2" not in measures


@given(TEXT)
def test_any_name_comes_back(name: str) -> None:
    assert next(iter(read(named_run(name)))).startswith(f"{name}[")


def test_a_hostile_name_comes_back() -> None:
    assert next(iter(read(named_run(HOSTILE)))).startswith(f"{HOSTILE}[")


def test_only_the_metrics_that_are_chosen_are_measures() -> None:
    stored = mixed_run().stored
    assert {name for one in read(select(stored, columns=["peak_memory_bytes"])).values() for name in one} == {
        "peak_memory_bytes"
    }
    times = read(select(stored, columns=["seconds_median"], short=True))
    assert CASE.case_id not in times
    assert isinstance(next(iter(times.values()))["seconds_median"].lower_value, float)
