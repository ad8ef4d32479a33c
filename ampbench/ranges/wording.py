"""What magnitudes and errors say, in sentences."""

from ampbench.ranges.formats import find_format
from ampbench.ranges.headroom import Headroom, headroom
from ampbench.ranges.scales import Scales
from ampbench.records.ranges import FirstNonfinite, Magnitudes, ModuleError, Swallowed
from ampbench.units import counted, format_error, format_share

ROOT = "the network itself"


def headroom_sentence(values: Magnitudes, dtype: str, scale: float = 1.0) -> str:
    """Return "layer3.0.conv1: largest activation is 1.8 times what fp16 holds", and what flushes if some do."""
    found: Headroom = headroom(values, dtype, scale)
    subject = f"{values.module or ROOT}: "
    what = f"{values.what} of {values.name.rpartition('.')[2]}" if values.name else values.what
    if found.reach is None:
        return f"{subject}no {what} is finite" if values.nonfinite else f"{subject}there is no {what}"
    largest = values.largest or 0.0
    if largest * scale >= find_format(dtype).overflow:
        said = f"largest {what} is {found.reach:.2g} times what {dtype} holds"
    else:
        said = f"largest {what} is {format_share(found.reach)} of what {dtype} holds"
    flushed = f", and {format_share(found.flushed)} of them flush to zero" if found.flushed else ""
    return f"{subject}{said}{flushed}"


def swallowed_sentence(row: Swallowed) -> str:
    """Return "fc.weight: 12.3% of its updates are lost where it is stored in bf16"."""
    if not row.moved:
        return f"{row.parameter}: no step changed it"
    share = format_share(row.swallowed / row.moved)
    return f"{row.parameter}: {share} of its updates are lost where it is stored in {row.dtype}"


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
    powers = f"{scales.lowest:g}" if scales.lowest == scales.highest else f"{scales.lowest:g} to {scales.highest:g}"
    return (
        f"loss scale {powers}: no gradient overflows {dtype}, {format_share(scales.flushed)} flush to zero "
        f"({format_share(scales.unscaled)} without scaling)"
    )


def nonfinite_sentence(found: FirstNonfinite) -> str:
    """Return where the first value that is not finite was made."""
    where = f"{found.module or ROOT}, {found.phase}, step {found.step}"
    largest = f" from inputs of at most {found.inputs_largest:.3g}" if found.inputs_largest is not None else ""
    gradient = f" as a gradient of {found.parameter}" if found.parameter else ""
    return f"{found.operation} in {where} makes the first value that is not finite{gradient}{largest}"
