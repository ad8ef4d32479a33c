"""What magnitudes and errors say, in sentences."""

import math

from ampbench.ranges.formats import find_format
from ampbench.ranges.headroom import headroom
from ampbench.ranges.scales import Scales
from ampbench.records.ranges import FirstNonfinite, Magnitudes, ModuleError
from ampbench.units import counted, format_error, format_share

ROOT = "the network itself"


def reach_phrase(values: Magnitudes, dtype: str, scale: float = 1.0) -> str:
    """Return "largest activation is 1.8 times what fp16 holds", with digits enough to tell it from 1."""
    what = values_phrase(values)
    reach = headroom(values, dtype, scale).reach
    if reach is None:
        return f"no {what} is finite" if values.nonfinite else f"there is no {what}"
    if (values.largest or 0.0) * scale >= find_format(dtype).overflow:
        return f"largest {what} is {format_times(reach)} times what {dtype} holds"
    return f"largest {what} is {format_share(min(reach, 1.0))} of what {dtype} holds"


def format_times(reach: float) -> str:
    """Return how many times a format's largest number a value is, with digits enough to tell it from 1: "1.0005"."""
    return f"{reach:.2g}" if reach >= 1.05 else f"{reach:.4f}"


def values_phrase(values: Magnitudes) -> str:
    """Return which values of a module these are: "activation", "weight", "weight of bias"."""
    name = values.name.rpartition(".")[2]
    return values.what if name in ("", values.what) else f"{values.what} of {name}"


def error_sentence(row: ModuleError) -> str:
    """Return "layer3.0.conv1: 512 of 4,096 outputs overflow on exact inputs", or what else its worst is."""
    subject = row.module or ROOT
    if not row.elements:
        return f"{subject}: not compared ({row.note})" if row.note else f"{subject}: not compared"
    if row.overflowed:
        handed = ", as inputs do that it is given" if row.inputs_overflowed else ""
        return f"{subject}: {row.overflowed:,} of {counted(row.elements, 'output')} overflow on exact inputs{handed}"
    flushed = f", {format_share(row.flushed / row.elements)} of its outputs flush to zero" if row.flushed else ""
    return f"{subject}: relative error {format_error(row.own_rel_l2)} on exact inputs{flushed}"


def scales_sentence(scales: Scales | None, dtype: str = "fp16") -> str:
    """Return which loss scales serve, and what they leave at zero."""
    if scales is None:
        return "there is no gradient to scale"
    if not scales.needed:
        return f"no loss scale is needed: no gradient overflows {dtype}, {format_share(scales.unscaled)} flush to zero"
    flushed = f"{format_share(scales.flushed)} flush to zero ({format_share(scales.unscaled)} without scaling)"
    return f"loss scale {scale_range(scales)}: no gradient overflows {dtype}, {flushed}"


def scale_range(scales: Scales) -> str:
    """Return "2^6 to 2^14": the loss scales that serve."""
    lowest, highest = format_scale(scales.lowest), format_scale(scales.highest)
    return lowest if lowest == highest else f"{lowest} to {highest}"


def format_scale(scale: float) -> str:
    """Return a loss scale as "2^16", one that is no power of two as "1000"."""
    mantissa, power = math.frexp(scale)
    return f"2^{power - 1}" if mantissa == 0.5 and scale != 1 else f"{scale:g}"


def nonfinite_sentence(found: FirstNonfinite) -> str:
    """Return where the first value that is not finite was made; steps count from 1."""
    where = f"{found.module or ROOT}, {found.phase}, step {found.step + 1:,}"
    largest = f" from inputs of at most {found.inputs_largest:.3g}" if found.inputs_largest is not None else ""
    gradient = f" as a gradient of {found.parameter}" if found.parameter else ""
    return f"{found.operation} in {where} makes the first value that is not finite{gradient}{largest}"
