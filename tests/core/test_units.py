import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.core import units
from ampbench.errors import UsageError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0152, "15.2 ms"),
        (0.9996, "1.00 s"),
        (59.96, "1.00 min"),
        (5400, "1.50 h"),
        (-0.0152, "-15.2 ms"),
        (0, "0 s"),
        (math.inf, "inf"),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_fits_once_rounded(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.1, "ratio", "3.10x"),
        (9999.96, "ratio", "1.00e+04x"),
        (math.inf, "ratio", "infx"),
        (5.43e-3, "error", "5.4e-03"),
        (0, "error", "0"),
        (1_204_000, "count", "1.20 M"),
        (0.123, "share", "12.3%"),
        (0, "share", "0%"),
        (0.99999, "share", ">99.9%"),
        (1.2e12, "FLOP/s", "1.20 TFLOP/s"),
        (512.0, "FLOP/s", "512 FLOP/s"),
        (1e-9, "share", "<0.01%"),
        (45.34, "dB", "45.3 dB"),
        (0.9999846, "cosine", "0.999985"),
        (2048, "B", "2.00 KiB"),
    ],
)
def test_each_unit_is_written_its_own_way(value, unit, text):
    assert units.format_quantity(value, unit) == text


@pytest.mark.parametrize("unit", units.FORMATS)
@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_undefined_is_a_dash(value, unit):
    assert units.format_quantity(value, unit) == "–"


@given(st.floats(1e-9, 3.5e6))
def test_a_written_time_lies_within_its_rounding_of_the_time(seconds):
    number, unit = units.format_seconds(seconds).split()
    factor = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    assert math.isclose(float(number) * factor, seconds, rel_tol=5.1e-3)
    assert float(number) < {"s": 60, "min": 60}.get(unit, 1000)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("4GiB", 4 * 2**30),
        ("4 gib", 4 * 2**30),
        ("512MB", 512_000_000),
        ("2G", 2 * 2**30),
        ("1.5k", 1536),
        ("8b", 8),
    ],
)
def test_sizes_are_read_as_people_type_them(text, size):
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("2m", 120), ("2 min", 120), ("1h", 3600), (".5", 0.5)],
)
def test_times_are_read_as_people_type_them(text, seconds):
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "12 parsecs", "1 2", "nan", "inf"])
def test_what_is_neither_size_nor_time_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="such as 4GiB"):
        units.parse_bytes(text)
    with pytest.raises(UsageError, match="such as 90"):
        units.parse_seconds(text)
