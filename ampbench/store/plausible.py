"""What the numbers, words and times of a run file may be, as tables: what lies outside is damage, no measurement.

Ranges and words are checked as a line is decoded, what must hold between the fields of a record by `wrong_parts`, both
when a file is read and when it is written. A field of no row may have any finite number, or any text.
"""

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, get_args, get_type_hints

from ampbench.metrics import METRICS
from ampbench.records.cases import PATHS, PHASES
from ampbench.records.divergences import ENDS
from ampbench.records.measurements import CAUSES, MEMORY_SOURCES, STAGES
from ampbench.records.runs import ENDINGS

Range = tuple[float, float]

_ROWS: tuple[tuple[Range, str], ...] = (
    # counts and bytes; JSON's integers are exact up to 64 bits
    (
        (0, 2**62),
        """
        output_elements output_reference_nonfinite output_reference_nan output_nan output_unlike output_fp32_nonfinite
        grad_reference_nonfinite grad_reference_nan grad_nan nonfinite_output
        argmax_agreeing argmax_decisions casts correct decisions elements flushed grad_elements grad_flushed
        grad_nonfinite inputs_overflowed moved nonfinite nonzero output_nonfinite output_shapes overflowed
        agreeing batches rows sample_count
        sampled swallowed zeros counts powers together skipped_steps skipped stale_weights warmup_steps calls
        sizes moving param_nonfinite
        units trials number index forward model_ops cast operation tensor made_by producer step steps ended_at
        seeds max_trials batch update_nonfinite growth_interval involuntary_switches batch_size cpu_count count threads
        schema work flops buffer_bytes bytes_read bytes_written cast_bytes gradient_bytes input_bytes memory_bytes
        memory_limit_bytes optimizer_bytes output_bytes parameter_bytes peak_bytes peak_bytes_after
        peak_bytes_before rss_bytes rss_peak_bytes stored_bytes weight_bytes
        """,
    ),
    ((1, 2**62), "steps_per_sample every traced_steps"),
    # servers and rounds are told apart one by one, and a run of the most rounds has hundreds
    ((0, 100_000), "round rounds builds server"),
    # a step: calling a Python function that does nothing takes 30 ns, and a time limit of eleven days is set by nobody
    ((1e-9, 1e6), "samples step_samples copy_samples before after"),
    # CPU time of a thread, which the clock may not resolve
    ((0, 1e6), "cpu_samples"),
    # of ops, of rounds, of limits, up to thirty years; an op may take less than the clock resolves
    ((0, 1e9), "seconds compile_seconds min_run_seconds max_seconds timeout_seconds"),
    # shares of CPU time, and a cosine, which rounding takes a little over
    ((0, 1 + 1e-9), "steal_share other_share median_margin flipped_margin swallowed_energy energies"),
    # what running means keep of themselves, or take in; what must arrive of an update
    ((0, 1), "beta1 beta2 running_momenta min_update_kept"),
    ((-1e150, 1e150), "update_kept"),
    ((-1 - 1e-6, 1 + 1e-6), "output_cosine"),
    # errors, whose squares are finite
    (
        (0, 1e150),
        """
        output_rel_l2 output_floor_rel_l2 output_fp32_rel_l2 grad_rel_l2 grad_worst_rel_l2 param_rel_l2 update_rel_l2
        grad_tensor_rel_l2 grad_bias grad_noise noise kept_error worst_rel_l2
        gradient_rel_l2 state_rel_l2 storage_rel_l2
        own_rel_l2 way_rel_l2 chance_rel_l2 total_rel_l2 rel_l2 from_fp32 from_fp64 max_error max_gradient_error
        floor_rel_l2 sample_p99_rel_l2 sample_worst_rel_l2 kl_mean kl_p99
        """,
    ),
    # magnitudes of values in up to fp64, of which sums and differences are finite
    (
        (0, 1e300),
        """
        output_reference_norm grad_reference_norm way last_rate output_max_abs loss_abs_error largest inputs_largest
        scaler_scale scale scales init_scale growth_factor backoff_factor items_per_step
        lr weight_decay eps momentum
        """,
    ),
    ((-1e150, 1e150), "kept worst_kept way_kept"),
    ((-1e300, 1e300), "rates loss reference_loss losses reference_losses value"),
    ((0, 1e15), "faults load frequency_hz accelerator_clock_hz"),
    ((-273.15, 1e4), "temperature_celsius"),
    # exponents of fp64
    ((-2000, 2000), "lowest"),
    # what a change saved, or what is alive after a step and was not before, may be less than nothing
    ((-(2**62), 2**62), "alive_bytes bytes_moved"),
)
RANGES: Mapping[str, Range] = {name: ends for ends, names in _ROWS for name in names.split()}
"""The lowest and the highest number that a field of this name may have, in every record but those of `_OF_RECORDS`."""
_OF_RECORDS: Mapping[tuple[str, str], Range] = {("CheckedSaving", "casts"): RANGES["bytes_moved"]}

UNBOUNDED = frozenset({"seed", "schedule_seed", "version", "parameters", "overrides", "sweeps"})
"""Numbers that users choose, and that nothing is computed from."""

WORDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Footer", "ended"): ENDINGS,
    ("Failure", "cause"): CAUSES,
    ("Failure", "stage"): STAGES,
    ("MemoryPass", "source"): MEMORY_SOURCES,
    ("FurtherDecisions", "ended"): ENDS,
    ("Case", "phase"): PHASES,
    ("Case", "path"): PATHS,
}
"""The words that a field of a record may be."""

_ANY: Range = (0, 1e300)
_OF_UNITS: Mapping[str, Range] = {
    "s": RANGES["seconds"],
    "cosine": RANGES["output_cosine"],
    "dB": (-1e4, 1e4),
    "share": RANGES["steal_share"],
    "kept": RANGES["kept"],
}
"""What readings may be, by the unit of their metric."""
_OVER_ONE = frozenset({"ceiling_share"})
"""Shares of what something else attained once."""

_PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Divergence": (
        ("argmax_agreeing", "argmax_decisions"),
        ("grad_flushed", "grad_elements"),
        ("grad_nonfinite", "grad_elements"),
        ("output_nonfinite", "output_elements"),
        ("output_nan", "output_nonfinite"),
        ("output_reference_nan", "output_reference_nonfinite"),
    ),
    "MemoryPass": tuple(
        (f"{name}_bytes", "peak_bytes") for name in ("parameter", "buffer", "input", "gradient", "optimizer")
    ),
    "FurtherDecisions": (("agreeing", "decisions"),),
    "Score": (("correct", "decisions"),),
    "GradientLook": (("nonzero", "elements"), ("flushed", "nonzero"), ("nonfinite", "elements")),
    "Swallowed": (("swallowed", "moved"),),
    "Update": (("swallowed", "moving"),),
    "SeenGradient": (("flushed", "elements"), ("nonfinite", "elements")),
}
"""Fields of a record that are part of another one, which is no smaller."""

_FIRST_YEAR, _LAST_YEAR = "1970", "2261"
"""Between which a time can be told in every time zone, in nanoseconds, and by every program that reads ours."""


def allowed(record: type, name: str) -> Range | None:
    """Return the lowest and the highest number of a field of `record`; None: any, or it holds none."""
    return _OF_RECORDS.get((record.__name__, name)) or RANGES.get(name)


def wrong_time(text: str) -> str:
    """Return what is wrong with `text` as a time in ISO 8601; "": nothing."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return f"is no time: {text!r}"
    return "" if _FIRST_YEAR <= text[:4] <= _LAST_YEAR else f"is no time that a clock shows: {text!r}"


def wrong_parts(record: Any) -> str:
    """Return which number of `record`, or of one in it, is more than what it is a part of; "": none."""
    kind: Any = type(record)
    for part, whole in _PARTS.get(kind.__name__, ()):
        of, all_of = getattr(record, part), getattr(record, whole)
        if of is not None and all_of is not None and of > all_of:
            return f"{part}, {of:,}, are more than {whole}, {all_of:,}"
    for name in _holders(kind):
        held = getattr(record, name)
        for one in held if isinstance(held, list) else () if held is None else (held,):
            if said := wrong_parts(one):
                return said
    return ""


def wrong_reading(metric: str, value: float) -> str:
    """Return what is wrong with another program's number; "": nothing."""
    lowest, highest = _ANY if metric in _OVER_ONE else _OF_UNITS.get(METRICS[metric].unit, _ANY)
    return "" if lowest <= value <= highest else f"its {metric} is {value:g}"


@functools.cache
def _holders(kind: Any) -> tuple[str, ...]:
    """Return the fields of a record whose records, or lists of them, there is something to check in."""
    if not is_dataclass(kind):
        return ()
    hints = get_type_hints(kind)
    return tuple(one.name for one in fields(kind) if any(map(_is_checked, _records_in(hints[one.name]))))


def _is_checked(kind: Any) -> bool:
    return kind.__name__ in _PARTS or bool(_holders(kind))


def _records_in(hint: Any) -> list[type]:
    """Return the records that a field with this annotation may hold, alone or in a list."""
    if isinstance(hint, type) and is_dataclass(hint):
        return [hint]
    return [record for argument in get_args(hint) for record in _records_in(argument)]
