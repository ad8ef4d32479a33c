"""The columns of a case's row: name, label, unit, better direction, source and meaning.

Frames, tables, comparisons, gates and docs iterate over them; a metric is a column with a unit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The tolerance of a metric in a comparison of two runs.

    `threshold` is the largest ignored relative change for one commit on one environment, `elsewhere` otherwise (other
    code and another torch sum in another order). `floor` is the largest ignored absolute difference, in the metric's
    unit.
    """

    kind: Literal["time", "memory", "accuracy"]
    threshold: float = 0.0
    elsewhere: float = 0.0
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `label` heads it in tables, `summary` explains it in one line.

    `unit`, a key of `units.FORMATS`, makes the column a metric; without one it names or counts the case itself.
    `better` is the direction in which a metric improves; None: neither (a bound of an interval). `gate` is its
    tolerance in comparisons; None: not judged. `noun` replaces the label in sentences. `undefined_by` is the part of a
    `Divergence` whose `nonfinite` elements make the metric undefined.

    `of` is the path to the value in `header`, `case`, `memory` or `late` ("memory.peak_bytes"), else in the divergence.
    "gradient.flushed / elements" is a ratio of two fields of one record. "": `judge.frame.FUNCTIONS` computes it.
    """

    name: str
    label: str
    unit: str = ""
    better: Literal["lower", "higher"] | None = None
    of: str = ""
    gate: Gate | None = None
    noun: str = ""
    undefined_by: str = ""
    summary: str = ""

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers."""
        return self.unit in ("count", "B") or self.name in ("rounds", "batch_size")

    def stored(self, records: dict[str, Sequence[Any]]) -> Sequence[Any]:
        """Return the values at `of`, one for each case, given the cases' records by kind; None if undefined."""
        path, _, divisor = self.of.partition(" / ")
        values = reach(path, records)
        if not divisor:
            return values
        against = reach(f"{path.rpartition('.')[0]}.{divisor}", records)
        ratios = [
            value / by if value is not None and by else math.nan for value, by in zip(values, against, strict=True)
        ]
        return [value if math.isfinite(value) else None for value in ratios]

    def means(self, summary: str) -> "Column":
        """Return the column with its summary."""
        return replace(self, summary=summary)


def reach(path: str, records: dict[str, Sequence[Any]]) -> Sequence[Any]:
    """Return the value at `path` in the records of each case; None if anything on the path is None.

    `records` keep the values before the last name, which further paths share.
    """
    if path in records:
        return records[path]
    owner, _, name = path.rpartition(".")
    owner = owner or "divergence"
    records[owner] = reach(owner, records)
    return [None if value is None else getattr(value, name) for value in records[owner]]


_TIME = Gate(kind="time", threshold=0.02, elsewhere=0.02, floor=50e-9)
_MEMORY = Gate(kind="memory", elsewhere=0.01)
_ERROR = Gate(kind="accuracy", elsewhere=0.1)
_FLUSHED = Gate(kind="accuracy", elsewhere=0.1, floor=1e-4)
_KEPT = Gate(kind="accuracy", elsewhere=0.01, floor=0.01)
_COUNT = Gate(kind="accuracy")


def _by_name(*columns: Column) -> Mapping[str, Column]:
    return MappingProxyType({column.name: column for column in columns})


_FIRST = _by_name(
    Column("run", "run", of="header.run").means("The run's id, which is also its file's name."),
    Column("case_id", "case", of="case.case_id").means("The case's stable id, the join key of every comparison."),
    Column("workload", "workload", of="case.workload").means("The network measured."),
    Column("family", "family", of="case.family").means("The family of the workload; `user` for a user's own."),
    Column("parameters", "parameters").means("Resolved parameters by name: `depth=4,width=512`."),
    Column("precision", "precision", of="case.precision").means("The precision's name."),
    Column("device", "device", of="case.device").means("The device type, such as `cuda`."),
    Column("phase", "phase", of="case.phase").means("`inference` or `training`."),
    Column("path", "path", of="case.path").means("`eager`, `compiled` (or `compiled-` and a mode) or `traced`."),
    Column("batch_size", "batch", of="case.batch_size").means("The batch size; undefined where a workload has none."),
    Column("input_dtype", "input", of="case.input_dtype").means("The dtype floating inputs are given in."),
    Column("memory_format", "format", of="case.memory_format").means("`contiguous` or `channels_last`."),
    Column("recipe", "recipe").means("What it is trained by; undefined: the workload's own way."),
    Column("optimizer", "optimizer").means("A training's optimizer: `AdamW lr=0.0003 weight_decay=0.1`, or `none`."),
    Column("sdpa", "sdpa").means("The one kernel of attention allowed (`--set sdpa`); undefined where torch chooses."),
    Column("attention", "attention").means("Attention kernels of a step and how often: `flash 10, math 2`, `none`."),
    Column("outcome", "outcome").means("`ok`, `skipped` or `failed`."),
    Column("reason", "reason").means("Why a case was skipped or failed; undefined where ok."),
    Column("rounds", "rounds").means("The rounds measured, without those of the control."),
    Column("seconds_median", "time", "s", "lower", gate=_TIME).means("Seconds per step: the median value of rounds."),
    Column("seconds_low", "time low", "s", None).means("Lower end of its 95% interval; undefined under three rounds."),
    Column("seconds_high", "time high", "s", None).means("Upper end of the same interval."),
    Column("items_per_second", "items/s", "items/s", "higher").means("Items per step divided by seconds_median."),
    Column("speedup_vs_fp32", "speed", "ratio", "higher").means("seconds_median of fp32, divided by its own."),
    Column("speedup_low", "speed low", "ratio", None).means("Lower end of its 95% interval, paired round by round."),
    Column("speedup_high", "speed high", "ratio", None).means("Upper end of the same interval."),
    Column("speedup_vs_tf32", "vs tf32", "ratio", "higher").means("seconds_median of tf32, divided by its own."),
    Column("speedup_vs_default", "vs default", "ratio", "higher").means("The same over fp32 as torch ships it."),
    Column("speedup_default_low", "vs default low", "ratio", None).means("Lower end of its interval, as speedup_low."),
    Column("speedup_default_high", "vs default high", "ratio", None).means("Upper end of the same interval."),
    Column("peak_memory_bytes", "peak memory", "B", "lower", "memory.peak_bytes", _MEMORY, noun="memory").means(
        "Peak memory of one step: weights, inputs, gradients, optimizer state and everything between."
    ),
    Column("memory_source", "memory from", of="memory.source").means("`allocator` (accelerator) or `profiler` (CPU)."),
    Column("memory_ratio_vs_fp32", "memory vs fp32", "ratio", "lower").means("peak_memory_bytes divided by fp32's."),
    Column("reserved_memory_bytes", "reserved", "B", "lower", "memory.reserved_bytes").means(
        "The most that an accelerator's caching allocator took from the device in the step, all told."
    ),
    Column("bytes_per_parameter", "B/param", "B/param", "lower", "memory.bytes_per_parameter").means(
        "In training: weights, gradients, master weights and optimizer state, by parameter."
    ),
    Column("output_rel_l2", "output error", "error", "lower", "output.rel_l2", _ERROR, undefined_by="output").means(
        "Euclidean norm of the output's error, relative to the norm of the fp64 reference."
    ),
    Column("output_worst_rel_l2", "worst output", "error", "lower", "output.worst.rel_l2").means(
        "The same of the output that errs most, logits without their common shift: what is judged."
    ),
    Column("output_worst_name", "erring output").means("The name of that output; undefined where there is only one."),
    Column("output_worst_floor_ratio", "worst ×floor", "ratio", "lower", "output.worst.rel_l2 / floor_rel_l2").means(
        "output_worst_rel_l2 divided by what merely rounding that output to the dtype errs."
    ),
    Column("sample_p99_rel_l2", "p99 sample", "error", "lower").means("99% quantile of the samples' relative errors."),
    Column("sample_worst_rel_l2", "worst sample", "error", "lower").means("The largest relative error of a sample."),
    Column("output_over_spread", "error/spread", "ratio", "lower", "output.noisiest.over_spread").means(
        "An output's error divided by what its rows differ by in the reference, where it is largest; classifiers apart."
    ),
    Column("output_spread_name", "noisy output").means("The name of that output; undefined where there is only one."),
    Column("output_max_abs", "max error", "error", "lower", "output.max_abs").means("The largest absolute error."),
    Column("output_cosine", "cosine", "cosine", "higher", "output.cosine").means("Cosine to the reference."),
    Column("output_sqnr_db", "SQNR", "dB", "higher").means("Signal to quantisation noise: -20 log10(output_rel_l2)."),
    Column("output_nonfinite", "nonfinite", "count", "lower", "output.nonfinite", _COUNT).means(
        "Output elements that are not finite where the reference's are."
    ),
    Column("output_not_finite", "not finite").means("`nan` or `inf` in the output, `in fp64` if in the reference."),
    Column(
        "output_reference_nonfinite", "ref. nonfinite", "count", "lower", "output.reference_nonfinite", _COUNT
    ).means("Output elements that are not finite in the reference."),
    Column("output_fp32_nonfinite", "fp32 nonfinite", "count", "lower", "output.fp32_nonfinite", _COUNT).means(
        "Output elements that are not finite in fp32 where the reference's are."
    ),
    Column("reference_dtype", "reference").means("What errors are against: `fp64`, or `fp32` if the fp64 step fails."),
    Column(
        "output_floor_ratio", "×floor", "ratio", "lower", "output.rel_l2 / floor_rel_l2", undefined_by="output"
    ).means("The error divided by that of merely rounding the reference output to the precision's dtype."),
    Column("output_fp32_ratio", "error/fp32", "ratio", "lower", "output.rel_l2 / fp32_rel_l2").means(
        "The error divided by fp32's own on the same device."
    ),
    Column("argmax_agreement", "argmax", "share", "higher").means("Share of decisions that are the reference's."),
    Column("argmax_bound", "argmax bound", "share", "higher").means("Its one-sided 95% lower bound (Clopper-Pearson)."),
    Column("kl_mean", "KL", "nats", "lower", "output.predictions.kl_mean").means("KL from the reference, mean row."),
    Column("kl_p99", "p99 KL", "nats", "lower", "output.predictions.kl_p99").means("The 99% quantile."),
    Column("logprob_gap_mean", "log-prob gap", "nats", "lower", "output.predictions.gap_mean").means(
        "Distance of the targets' log-probabilities from the reference's, mean row."
    ),
    Column("logprob_gap_p99", "p99 gap", "nats", "lower", "output.predictions.gap_p99").means("The 99% quantile."),
    Column("loss_rel_error", "relative loss", "error", "lower").means("loss_abs_error, relative to the reference."),
    Column("loss_abs_error", "loss error", "error", "lower").means("Absolute difference to the reference's loss."),
    Column("grad_rel_l2", "gradient error", "error", "lower", "gradient.rel_l2", _ERROR, undefined_by="gradient").means(
        "Euclidean norm of the error over all gradients, relative to the reference's norm."
    ),
    Column("grad_not_finite", "grad nonfinite").means("`nan` or `inf` in the gradients, `nan in fp64` if there."),
    Column("grad_worst_parameter", "worst gradient", of="gradient.worst_parameter").means("The one that errs most."),
    Column(
        "grad_flushed_share",
        "flushed",
        "share",
        "lower",
        "gradient.flushed / elements",
        _FLUSHED,
        noun="flushed gradients",
        undefined_by="gradient",
    ).means("The share of gradient elements that are exactly zero where the reference's are not."),
    Column("grad_tensor_parameter", "judged grad", of="gradient.tensor_parameter").means(
        "The parameter with the largest error of its gradient, of those with 1% of the norm or more."
    ),
    Column("grad_tensor_rel_l2", "tensor's error", "error", "lower", "gradient.tensor_rel_l2").means(
        "The relative error of that parameter's gradient."
    ),
    Column("scaler_scale", "loss scale", "number", None, "scaler_scale").means("Where GradScaler settled."),
    Column("input_largest", "largest input", "number", None, "input_largest").means("Largest magnitude of all inputs."),
    Column("target_largest", "largest target", "number", None, "target_largest").means("Largest magnitude of targets."),
    Column("statistics_stall", "stall", "share", "lower", "statistics_stall").means(
        "How far running statistics stop from those of batches: half a unit in their last place / momentum."
    ),
    Column("param_rel_l2", "parameter error", "error", "lower", "param_rel_l2", _ERROR, undefined_by="gradient").means(
        "Relative error of parameters and buffers after one optimizer step, not of what it changed."
    ),
    Column("param_nonfinite", "param nonfinite", "count", "lower", "param_nonfinite", _COUNT).means(
        "Elements of parameters and buffers that are not finite after an optimizer step."
    ),
    Column("update_rel_l2", "update error", "error", "lower", "update.rel_l2", _ERROR).means(
        "Error of what an optimizer step changes of the stored weights, relative to fp64's change."
    ),
    Column("update_kept", "kept", "kept", "higher", "update.kept", _KEPT, noun="update").means(
        "The share of fp64's update that arrives in the stored weights: <own, fp64> / <fp64, fp64>."
    ),
    Column("update_noise", "update noise", "error", "lower", "update.noise").means("The rest, relative to the update."),
    Column("update_swallowed_share", "swallowed", "share", "lower", "update.swallowed / moving").means(
        "The share of weights that fp64's update moves and that do not move where they are stored."
    ),
    Column("update_swallowed_energy", "swallowed part", "share", "lower", "update.swallowed_energy").means(
        "The same, each weighted by its square in fp64's update."
    ),
    Column("update_worst_parameter", "worst update", of="update.worst_parameter").means("Keeps least of its update."),
    Column("update_worst_kept", "worst kept", "kept", "higher", "update.worst_kept").means("What that one keeps."),
    Column("busy_share", "busy", "share", None).means("Share of a step in which the accelerator computes or copies."),
    Column("flops_per_step", "FLOPs/step", "count", None).means("Matrix products, convolutions, attention."),
    Column("flops_per_second", "FLOP/s", "FLOP/s", "higher").means("flops_per_step divided by seconds_median."),
    Column("least_bytes_per_step", "least bytes", "B", None, "memory.least_bytes").means("Least traffic of a step."),
    Column("ceiling_share", "of ceiling", "share", "higher").means("Least time at the ceilings / seconds_median."),
    Column("bound_by", "bound by").means("What that least time is of: products, convolutions, attention or memory."),
    Column("burst_seconds", "burst", "s", "lower").means("Fastest sample of an accelerator: median over rounds."),
    Column("energy_per_step", "energy/step", "J", "lower").means("Mean power times the seconds of a step."),
    Column("energy_per_item", "energy/item", "J", "lower").means("energy_per_step divided by the items per step."),
    Column("energy_error", "energy ±", "share", "lower").means("Relative error, by the sensor's accuracy and rate."),
    Column("other_share", "CPU of others", "share", "lower").means("CPU share of other processes: median of rounds."),
    Column("torch_version", "torch", of="header.environment.torch_version").means("The version of torch measured."),
)
LATE = (
    "output_rel_l2", "output_worst_rel_l2", "output_over_spread", "output_spread_name", "output_nonfinite",
    "argmax_agreement", "loss_rel_error", "loss_abs_error", "grad_rel_l2", "grad_flushed_share",
    "grad_tensor_parameter", "grad_tensor_rel_l2", "scaler_scale", "statistics_stall", "param_nonfinite",
    "update_kept", "update_worst_parameter",
)  # fmt: skip
"""The columns by which trainings are judged; those of the late place have the suffix `LATER`."""
LATER = "_late"


COLUMNS = _by_name(
    *_FIRST.values(),
    Column("late_steps", "late steps", "count", None, "late.steps").means("The fp32 steps before the late place."),
    Column("late_batches", "late batches", "count", None, "late.batches").means("The batches of these steps."),
    Column("late_stop", "late stop", of="late.stop").means("Why these steps ended, or why there are none."),
    *(
        replace(
            _FIRST[name], name=f"{name}{LATER}", label=f"late {_FIRST[name].label}", of="", gate=None, undefined_by=""
        ).means(f"{name} at the late place of a training.")
        for name in LATE
    ),
)
"""The columns of `ampbench.load`, in their order."""

METRICS: Mapping[str, Column] = _by_name(*(column for column in COLUMNS.values() if column.unit))
"""The columns of measured quantities."""

DRIFT, MEAN = "reference_drift", "seconds_mean"
COMPARED = _by_name(
    Column(DRIFT, "fp64 result", "error", "lower", gate=Gate(kind="accuracy", threshold=1e-8, elsewhere=1e-6)).means(
        "How far the candidate's fp64 output, gradients or loss lie from the baseline's, relative to it."
    ),
    Column(MEAN, "mean time", "s", "lower", gate=replace(_TIME, threshold=0.05, elsewhere=0.05)).means(
        "Mean seconds per step over all samples of all rounds, the slow ones too: what throughput goes by."
    ),
)
"""The metrics that exist only in comparisons.

fp64 rounds at 1e-16, so another order of summation moves a result by at most 1e-10, or 1e-7 if a network forces fp32 in
places. A sketch resolves 1e-8.
"""

GATED: Mapping[str, Gate] = MappingProxyType(
    {column.name: column.gate for column in (*COLUMNS.values(), *COMPARED.values()) if column.gate is not None}
)
"""The tolerances of the metrics that comparisons judge."""
