"""Format quantities as short text, and parse text as quantities; all other code uses base SI units.

Three significant digits, rounded before the unit is chosen, so that 999.96 µs is "1.00 ms" and never "1000 µs".
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ampbench.errors import UsageError

UNDEFINED = "–"
"""The text for a missing number; the result table, Markdown and lists leave the cell empty."""
Format = Callable[[float | None], str]

_TYPED_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3.6e3}
_TYPED_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _TYPED_BYTES |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power, _letter: 1024**_power}

_TYPED = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[a-zµ]*)", re.IGNORECASE)


def _defined(format: Callable[[float], str]) -> Format:
    """Return a format that gives `UNDEFINED` for None and NaN."""
    return lambda value: UNDEFINED if value is None or math.isnan(value) else format(value)


def _scaled(*scales: tuple[float, str], zero: str = "0", after: str = "", whole: bool = False) -> Format:
    """Return a format in the smallest of `scales` whose rounded value is below the next scale.

    `after` follows the unit; in the first scale `whole` numbers have no decimals.
    """

    def format(value: float) -> str:
        if value == 0 or math.isinf(value):
            return f"{value}" if value else zero
        for place, (scale, _) in enumerate(scales[1:]):
            if abs(_rounded(value / scales[place][0])) < scale / scales[place][0] * (1 - 1e-12):
                break
        else:
            place = len(scales) - 1
        if whole and not place and value == int(value):
            return f"{value:.0f} {scales[0][1]}".rstrip()
        rounded = _rounded(value / scales[place][0])
        if place:
            rounded = math.copysign(max(abs(rounded), 1.0), value)
        unit = scales[place][1]
        return f"{_digits(rounded)} {unit}".rstrip() + (f" {after}" if after[:1].isalpha() and not unit else after)

    return _defined(format)


_COUNTS = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
_BINARY = tuple((1024.0**power, unit) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB")))
_JOULES = ((1e-9, "nJ"), (1e-6, "uJ"), (1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ"))
format_seconds = _scaled((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), zero="0 s")
format_bytes = _scaled(*_BINARY, zero="0 B", whole=True)
format_error = _defined(lambda value: f"{value:.1e}" if value else "0")
"""An error as "5.4e-03": its size matters, not its digits."""


def format_duration(seconds: float) -> str:
    """Return a duration in whole seconds, as "16 s", "2 min", "2 min 40 s" or "1 h 5 min"."""
    minutes, left = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" + (f" {left} s" if left else "") if minutes else f"{left} s"


def apart(*values: float) -> list[str]:
    """Return numbers as "2.31", with three digits, or more if different numbers would look equal."""
    different = len(set(values))
    texts = [f"{value:.3g}" for value in values]
    for digits in range(4, 18):
        if len(set(texts)) == different:
            break
        texts = [f"{value:.{digits}g}" for value in values]
    return texts


@_defined
def format_ratio(value: float) -> str:
    """Return a ratio as "3.10x"; out of 0.001 to 10,000 as "1.20e-04x"."""
    rounded = _rounded(value)
    if rounded != 0 and not 1e-3 <= abs(rounded) < 1e4:
        return f"{rounded:.2e}x"
    return f"{_digits(rounded)}x"


def times(ratio: float) -> str:
    """Return a ratio with two decimals ("3.10x"), so that ratios align; below a hundredth "<0.01x"."""
    if 0 < ratio < 0.01:
        return "<0.01x"
    return f"{ratio:.2f}x" if ratio < 1000 else format_ratio(ratio)


@_defined
def format_share(value: float) -> str:
    """Return a share as "12.3%" or "117%"; nearly all or none is ">99.9%" or "<0.01%", never 100% or 0%."""
    if value in (0, 1):
        return f"{value:.0%}"
    if value > 1:
        return f"{max(value, 1.01):.0%}"
    rounded = _rounded(value * 100)
    if rounded < 0.01:
        return "<0.01%"
    return f"{_digits(rounded)}%" if rounded < 100 else ">99.9%"


@_defined
def format_kept(value: float) -> str:
    """Return a kept share as "98.4%", "100%" within rounding; it may be below zero."""
    rounded = _rounded(value * 100)
    if rounded != 0 and abs(rounded) < 0.01:
        return "<0.01%"
    return f"{_digits(rounded)}%" if abs(rounded) < 99.95 else f"{round(rounded):,}%"


def format_percent(value: float, sign: bool = False) -> str:
    """Return a relative number as "7.2%", "12%" or "0.04%", with `sign` as "+7.2%" and "-7.2%"."""
    return f"{_hundredths(value, sign, whole=9.95)}%"


def format_exact_percent(value: float, sign: bool = False) -> str:
    """Return the same for an exact number: "2e-05%" instead of "0%" if it is not zero."""
    text = format_percent(value, sign)
    return f"{100 * value:{'+' if sign else ''}.1g}%" if value and text == "0%" else text


def format_percent_range(low: float, high: float, sign: bool = False) -> str:
    """Return a range of relative numbers as "6.1 to 8.4%", with `sign` as "-1.2 to +3.4%"."""
    return f"{_hundredths(low, sign, whole=99.5)} to {_hundredths(high, sign, whole=99.5)}%"


def format_limit(threshold: float, beyond: float = 0.0) -> str:
    """Return a threshold as a user types it: "2%", "2.5%".

    Thresholds are ratios, and a fall by 9.09% undoes a rise by 10%: a fall `beyond` the threshold gets 9.09%.
    """
    if -threshold <= beyond < 0:
        threshold = threshold / (1 + threshold)
    return f"{100 * threshold:.3g}%"


def one_of(names: Sequence[str]) -> str:
    """Return "cpu, cuda or xpu" for these three."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def all_of(names: Sequence[str]) -> str:
    """Return "cpu, cuda and xpu" for these three, "cpu and cuda" for two; "" for none."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def every(count: int) -> str:
    """Return "both" for two of something, "all 11" for more."""
    return "both" if count == 2 else f"all {count:,}"


def counted(count: int, noun: str, more: str = "") -> str:
    """Return a count with its noun, "1 case" or "10,000 cases"; `more` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else more or f'{noun}s'}"


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "s": format_seconds,
        "B": format_bytes,
        "items/s": _scaled(*_COUNTS, zero="0/s", after="/s"),
        "FLOP/s": _scaled(*_COUNTS, zero="0 FLOP/s", after="FLOP/s"),
        "B/s": _scaled(*_COUNTS, zero="0 B/s", after="B/s"),  # in decimal units, as in datasheets
        "B/param": _defined("{:,.1f}".format),
        "count": _scaled(*_COUNTS, whole=True),
        "whole": _defined("{:,}".format),
        "loss": _defined(lambda value: f"{value:#.4g}".rstrip(".")),
        "ratio": format_ratio,
        "error": format_error,
        "number": _defined("{:.6g}".format),
        "share": format_share,
        "nats": _defined(lambda value: f"{format_error(value)} nats"),
        "kept": format_kept,
        "dB": _defined("{:.1f} dB".format),
        "cosine": _defined("{:.6f}".format),
        "J": _scaled(*_JOULES, zero="0 J"),
    }
)
"""The format of each unit in `metrics.py` and in columns of tables."""


def format_quantity(value: float | None, unit: str) -> str:
    """Return `value` of `unit` (a key of `FORMATS`) as short text; "–" for None and NaN."""
    return FORMATS[unit](value)


def parse_seconds(text: str) -> float:
    """Return the seconds in "90", "1.5s", "250ms", "2m" or "1h"; `UsageError` for anything else."""
    return _parsed(text, _TYPED_SECONDS, "a time such as 90, 250ms, 2m or 1h")


def parse_bytes(text: str) -> int:
    """Return the bytes in "4GiB", "512MB" (decimal), "2G" (binary) or "1024"; `UsageError` for anything else."""
    return round(_parsed(text, _TYPED_BYTES, "a size such as 4GiB, 512MB or 1048576"))


def parse_value(text: str) -> bool | int | float | str:
    """Return the int, float, bool or text that `text` spells; `UsageError` for a number no run file can hold."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if not math.isfinite(number) or (kind is int and abs(number) >= 2**63):
            raise UsageError(f"{text} is no value of a parameter: give a finite number, below 2**63 where it is whole")
        return number
    return text


def _parsed(text: str, units: Mapping[str, float], wanted: str) -> float:
    match = _TYPED.fullmatch(text.strip())
    factor = units.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not {wanted}")
    return float(match["number"]) * factor


def _rounded(value: float) -> float:
    return float(f"{value:.2e}") if abs(value) < 1000 else float(f"{value:.0f}")


def _digits(rounded: float) -> str:
    """Write a number that `_rounded` returned, without losing or inventing a digit."""
    if rounded == 0 or not math.isfinite(rounded):
        return f"{rounded:.0f}"
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(decimals, 0)}f}"


def _hundredths(value: float, sign: bool, whole: float) -> str:
    """Return `value` in hundredths, from `whole` on without decimals."""
    if not math.isfinite(value):
        return f"{value:+}" if sign else f"{value}"
    hundredths = 100 * value
    size = abs(hundredths)
    decimals = 0 if size >= whole or size == 0 else 1 if size >= 0.0995 else 2
    text = f"{hundredths:{'+' if sign else ''}.{decimals}f}"
    return text if text.strip("+-.0") else "0"
