"""Every column of a case's row once: what it is called, its unit, which way is better, what it says.

Frames, tables, comparisons, gates and docs iterate over these; a metric is a column with a unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """How a metric is judged when two runs are compared: the largest relative change that counts as none.

    `threshold` holds for one commit on one environment, `elsewhere` otherwise (other code and another torch sum in
    another order). `floor` is the largest absolute difference, in the metric's unit, that counts as none.
    """

    kind: Literal["time", "memory", "accuracy"]
    threshold: float = 0.0
    elsewhere: float = 0.0
    floor: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: `label` heads it in tables, `summary` explains it in one line.

    `unit` is one of those in `units.FORMATS` and makes the column a metric; without one it names or counts the case
    itself. `better` is the direction in which a metric improves; None: neither (a bound of an interval). `gate` says
    how comparisons judge it; None: they do not. `noun` is what a sentence has more or less of, where that is not the
    label. `undefined_by` is the count of a `Divergence` that makes the metric undefined, and what it counts.
    """

    name: str
    label: str
    summary: str
    unit: str = ""
    better: Literal["lower", "higher"] | None = None
    gate: Gate | None = None
    noun: str = ""
    undefined_by: tuple[str, str] | None = None


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        column.name: column
        for column in (
            Column(name="run", label="run", summary="The run's id, which is also its file's name."),
            Column(name="case_id", label="case", summary="The case's stable id, the join key of every comparison."),
            Column(name="workload", label="workload", summary="The network measured."),
            Column(name="family", label="family", summary="The family of the workload; `user` for a user's own."),
            Column(name="parameters", label="parameters", summary="Resolved parameters by name: `depth=4,width=512`."),
            Column(name="precision", label="precision", summary="The precision's name."),
            Column(name="device", label="device", summary="The device type, such as `cuda`."),
            Column(name="phase", label="phase", summary="`inference` or `training`."),
            Column(
                name="path",
                label="path",
                summary="How it is run: `eager`, `compiled` (or `compiled-` and a mode) or `traced`.",
            ),
            Column(name="batch_size", label="batch", summary="The batch size; undefined where a workload has none."),
            Column(name="input_dtype", label="input", summary="The dtype floating inputs are given in."),
            Column(name="memory_format", label="format", summary="`contiguous` or `channels_last`."),
            Column(name="recipe", label="recipe", summary="What it is trained by; undefined: the workload's own way."),
            Column(
                name="sdpa",
                label="sdpa",
                summary="The one kernel of attention that `--sdpa` allows; undefined where torch chooses.",
            ),
            Column(
                name="attention",
                label="attention",
                summary="The kernels of attention in one step, with how often each ran: `flash 12`, "
                "`flash 10, math 2`, `none`; undefined where it is not known.",
            ),
            Column(name="outcome", label="outcome", summary="`ok`, `skipped` or `failed`."),
            Column(name="reason", label="reason", summary="Why a case was skipped or failed; undefined where ok."),
            Column(name="rounds", label="rounds", summary="The rounds measured, without those of the control."),
            Column(
                name="seconds_median",
                label="time",
                unit="s",
                better="lower",
                gate=Gate(kind="time", threshold=0.02, elsewhere=0.02, floor=50e-9),
                summary="Seconds per step: median over rounds; a round is its fastest sample, on accelerators "
                "its median window.",
            ),
            Column(
                name="seconds_low",
                label="low",
                unit="s",
                summary="Lower end of the 95% t interval of the log round values; undefined under three rounds.",
            ),
            Column(name="seconds_high", label="high", unit="s", summary="Upper end of the same interval."),
            Column(
                name="items_per_second",
                label="items/s",
                unit="items/s",
                better="higher",
                summary="Items per step divided by seconds_median.",
            ),
            Column(
                name="speedup_vs_fp32",
                label="speed",
                unit="ratio",
                better="higher",
                summary="seconds_median of the same case in fp32 (tf32 off), divided by this one's.",
            ),
            Column(
                name="speedup_low",
                label="speed low",
                unit="ratio",
                summary="Lower end of the speedup's 95% interval, paired round by round; undefined under three rounds.",
            ),
            Column(name="speedup_high", label="speed high", unit="ratio", summary="Upper end of the same interval."),
            Column(
                name="speedup_vs_tf32",
                label="vs tf32",
                unit="ratio",
                better="higher",
                summary="seconds_median of the same case in tf32, divided by this one's.",
            ),
            Column(
                name="speedup_vs_default",
                label="vs default",
                unit="ratio",
                better="higher",
                summary="seconds_median of the same case in fp32 as torch ships it (`default`), divided by this one's.",
            ),
            Column(
                name="speedup_default_low",
                label="vs default low",
                unit="ratio",
                summary="Lower end of the 95% interval of speedup_vs_default, made as speedup_low.",
            ),
            Column(
                name="speedup_default_high",
                label="vs default high",
                unit="ratio",
                summary="Upper end of the same interval.",
            ),
            Column(
                name="peak_memory_bytes",
                label="peak memory",
                unit="B",
                better="lower",
                gate=Gate(kind="memory", elsewhere=0.01),
                noun="memory",
                summary="Peak memory of one step: weights, inputs, gradients, optimizer state and everything between.",
            ),
            Column(
                name="memory_source",
                label="memory from",
                summary="Who counted: `allocator` (accelerator) or `profiler` (CPU).",
            ),
            Column(
                name="memory_ratio_vs_fp32",
                label="memory vs fp32",
                unit="ratio",
                better="lower",
                summary="peak_memory_bytes divided by that of the same case in fp32.",
            ),
            Column(
                name="reserved_memory_bytes",
                label="reserved",
                unit="B",
                better="lower",
                summary="The most that an accelerator's caching allocator took from the device in the step, all told.",
            ),
            Column(
                name="bytes_per_parameter",
                label="B/param",
                unit="B/param",
                better="lower",
                summary="In training: weights, gradients, master weights and optimizer state, by parameter.",
            ),
            Column(
                name="output_rel_l2",
                label="output error",
                unit="error",
                better="lower",
                gate=Gate(kind="accuracy", elsewhere=0.1),
                undefined_by=("output_nonfinite", "output"),
                summary="Euclidean norm of the output's error, relative to the norm of the fp64 reference.",
            ),
            Column(
                name="output_worst_rel_l2",
                label="worst output",
                unit="error",
                better="lower",
                summary="The same of the output that errs most, logits without their common shift: what is judged.",
            ),
            Column(
                name="output_worst_name",
                label="erring output",
                summary="The name of that output; undefined where there is only one.",
            ),
            Column(
                name="output_worst_floor_ratio",
                label="worst ×floor",
                unit="ratio",
                better="lower",
                summary="output_worst_rel_l2 divided by what merely rounding that output to the dtype errs.",
            ),
            Column(
                name="sample_p99_rel_l2",
                label="p99 sample",
                unit="error",
                better="lower",
                summary="The 99% quantile of the samples' relative errors, in the output in which it is largest.",
            ),
            Column(
                name="sample_worst_rel_l2",
                label="worst sample",
                unit="error",
                better="lower",
                summary="The largest relative error of a sample.",
            ),
            Column(
                name="output_max_abs",
                label="max error",
                unit="error",
                better="lower",
                summary="The largest absolute error of an output element.",
            ),
            Column(
                name="output_cosine",
                label="cosine",
                unit="cosine",
                better="higher",
                summary="Cosine similarity of output and reference.",
            ),
            Column(
                name="output_sqnr_db",
                label="SQNR",
                unit="dB",
                better="higher",
                summary="Signal to quantisation noise: -20 log10(output_rel_l2); undefined where there is no error.",
            ),
            Column(
                name="output_nonfinite",
                label="nonfinite",
                unit="count",
                better="lower",
                gate=Gate(kind="accuracy"),
                summary="Output elements that are not finite where the reference's are.",
            ),
            Column(
                name="output_not_finite",
                label="not finite",
                summary="`nan` or `inf` in the output; `nan in fp64` or `inf in fp64` where it is in the reference.",
            ),
            Column(
                name="output_reference_nonfinite",
                label="ref. nonfinite",
                unit="count",
                better="lower",
                gate=Gate(kind="accuracy"),
                summary="Output elements that are not finite in the reference.",
            ),
            Column(
                name="output_fp32_nonfinite",
                label="fp32 nonfinite",
                unit="count",
                better="lower",
                gate=Gate(kind="accuracy"),
                summary="Output elements that are not finite in fp32 where the reference's are.",
            ),
            Column(
                name="reference_dtype",
                label="reference",
                summary="What errors are against: `fp64`, or `fp32` where the fp64 step fails; undefined if both do.",
            ),
            Column(
                name="output_floor_ratio",
                label="×floor",
                unit="ratio",
                better="lower",
                undefined_by=("output_nonfinite", "output"),
                summary="The error divided by that of merely rounding the reference output to the precision's dtype.",
            ),
            Column(
                name="output_fp32_ratio",
                label="error/fp32",
                unit="ratio",
                better="lower",
                summary="The error divided by fp32's own on the same device.",
            ),
            Column(
                name="argmax_agreement",
                label="argmax",
                unit="share",
                better="higher",
                summary="The share of a classifier's decisions that are those of the reference.",
            ),
            Column(
                name="argmax_bound",
                label="argmax bound",
                unit="share",
                better="higher",
                summary="The least agreement that so many decisions leave possible: one-sided 95% Clopper-Pearson.",
            ),
            Column(
                name="kl_mean",
                label="KL",
                unit="nats",
                better="lower",
                summary="KL divergence of a classifier's probabilities from the reference's: mean over rows.",
            ),
            Column(
                name="kl_p99",
                label="p99 KL",
                unit="nats",
                better="lower",
                summary="The same: 99% quantile over rows.",
            ),
            Column(
                name="loss_rel_error",
                label="relative loss",
                unit="error",
                better="lower",
                summary="The difference of the loss and the reference's, relative to the reference's.",
            ),
            Column(
                name="loss_abs_error",
                label="loss error",
                unit="error",
                better="lower",
                summary="The absolute difference of the loss and the reference's.",
            ),
            Column(
                name="grad_rel_l2",
                label="gradient error",
                unit="error",
                better="lower",
                gate=Gate(kind="accuracy", elsewhere=0.1),
                undefined_by=("grad_nonfinite", "gradient"),
                summary="Euclidean norm of the error over all gradients, relative to the reference's norm.",
            ),
            Column(
                name="grad_not_finite",
                label="grad nonfinite",
                summary="`nan` or `inf` in the gradients; `nan in fp64` where it is in the reference.",
            ),
            Column(
                name="grad_worst_parameter",
                label="worst gradient",
                summary="The parameter whose gradient has the largest relative error.",
            ),
            Column(
                name="grad_flushed_share",
                label="flushed",
                unit="share",
                better="lower",
                gate=Gate(kind="accuracy", elsewhere=0.1, floor=1e-4),
                noun="flushed gradients",
                undefined_by=("grad_nonfinite", "gradient"),
                summary="The share of gradient elements that are exactly zero where the reference's are not.",
            ),
            Column(
                name="grad_tensor_parameter",
                label="judged grad",
                summary="The parameter with the largest error of its gradient, of those with 1% of the norm or more.",
            ),
            Column(
                name="grad_tensor_rel_l2",
                label="tensor's error",
                unit="error",
                better="lower",
                summary="The relative error of that parameter's gradient.",
            ),
            Column(
                name="grad_bias_ratio",
                label="bias/noise",
                unit="ratio",
                better="lower",
                summary="What errors of gradients have in common over batches, divided by the noise of a batch.",
            ),
            Column(
                name="param_rel_l2",
                label="parameter error",
                unit="error",
                better="lower",
                gate=Gate(kind="accuracy", elsewhere=0.1),
                undefined_by=("grad_nonfinite", "gradient"),
                summary="Relative error of parameters and buffers after one optimizer step, not of what it changed.",
            ),
            Column(
                name="param_nonfinite",
                label="param nonfinite",
                unit="count",
                better="lower",
                gate=Gate(kind="accuracy"),
                summary="Elements of parameters and buffers that are not finite after an optimizer step.",
            ),
            Column(
                name="update_rel_l2",
                label="update error",
                unit="error",
                better="lower",
                gate=Gate(kind="accuracy", elsewhere=0.1),
                summary="Error of what an optimizer step changes of the stored weights, relative to fp64's change.",
            ),
            Column(
                name="update_kept",
                label="kept",
                unit="kept",
                better="higher",
                gate=Gate(kind="accuracy", elsewhere=0.01, floor=0.01),
                noun="update",
                summary="The share of fp64's update that arrives in the stored weights: <own, fp64> / <fp64, fp64>.",
            ),
            Column(
                name="update_noise",
                label="update noise",
                unit="error",
                better="lower",
                summary="What else the weights move by, relative to fp64's update: the norm of own - kept × fp64.",
            ),
            Column(
                name="update_swallowed_share",
                label="swallowed",
                unit="share",
                better="lower",
                summary="The share of weights that fp64's update moves and that do not move where they are stored.",
            ),
            Column(
                name="update_swallowed_energy",
                label="swallowed part",
                unit="share",
                better="lower",
                summary="The same, each weighted by its square in fp64's update.",
            ),
            Column(
                name="update_worst_parameter",
                label="worst update",
                summary="The parameter that keeps least of its update, of those with 1% of its square or more.",
            ),
            Column(
                name="update_worst_kept",
                label="worst kept",
                unit="kept",
                better="higher",
                summary="The share of its update that this parameter keeps.",
            ),
            Column(
                name="busy_share",
                label="busy",
                unit="share",
                summary="The share of a step's time in which the accelerator computes or copies: its profiled work "
                "divided by seconds_median, at most 1; undefined on a CPU.",
            ),
            Column(
                name="flops_per_step",
                label="FLOPs/step",
                unit="count",
                summary="FLOPs of one step: matrix products, convolutions, attention; a multiply-add is two.",
            ),
            Column(
                name="flops_per_second",
                label="FLOP/s",
                unit="FLOP/s",
                better="higher",
                summary="flops_per_step divided by seconds_median.",
            ),
            Column(
                name="least_bytes_per_step",
                label="least bytes",
                unit="B",
                summary="What a step must read and write: weights, inputs, outputs; in training state, too.",
            ),
            Column(
                name="ceiling_share",
                label="of ceiling",
                unit="share",
                better="higher",
                summary="The least time of the step by its FLOPs and bytes at the ceilings, by seconds_median.",
            ),
            Column(
                name="bound_by",
                label="bound by",
                summary="What that least time is of: products, convolutions, attention or memory.",
            ),
            Column(
                name="burst_seconds",
                label="burst",
                unit="s",
                better="lower",
                summary="Seconds per step of an accelerator's fastest sample, warming included: median over rounds.",
            ),
            Column(
                name="energy_per_step",
                label="energy/step",
                unit="J",
                better="lower",
                summary="Mean power while an accelerator was timed, times the seconds of a step: median over rounds.",
            ),
            Column(
                name="energy_per_item",
                label="energy/item",
                unit="J",
                better="lower",
                summary="energy_per_step divided by the items per step.",
            ),
            Column(
                name="energy_error",
                label="energy ±",
                unit="share",
                better="lower",
                summary="By what share that may be off: accuracy of the sensor, and how seldom it is read.",
            ),
            Column(
                name="other_share",
                label="CPU of others",
                unit="share",
                better="lower",
                summary="What other processes used of the CPU while the case was timed: the median over rounds.",
            ),
            Column(name="torch_version", label="torch", summary="The version of torch measured."),
        )
    }
)
"""The columns of `ampbench.load`, in their order."""

METRICS: Mapping[str, Column] = MappingProxyType({name: column for name, column in COLUMNS.items() if column.unit})
"""Those of the columns that are measured quantities."""

DRIFT = "reference_drift"
MEAN = "seconds_mean"
COMPARED: Mapping[str, Column] = MappingProxyType(
    {
        DRIFT: Column(
            name=DRIFT,
            label="fp64 result",
            unit="error",
            better="lower",
            gate=Gate(kind="accuracy", threshold=1e-8, elsewhere=1e-6),
            summary="How far the candidate's fp64 output, gradients or loss lie from the baseline's, relative to it.",
        ),
        MEAN: Column(
            name=MEAN,
            label="mean time",
            unit="s",
            better="lower",
            gate=Gate(kind="time", threshold=0.05, elsewhere=0.05, floor=50e-9),
            summary="Mean seconds per step over all samples of all rounds, the slow ones too: what throughput goes by.",
        ),
    }
)
"""The metrics that comparisons alone have.

fp64 rounds at 1e-16, so that another order of summation moves a result by 1e-10 at most, or by 1e-7 where a network
insists on fp32 in places. 1e-8 is what a sketch resolves.
"""

GATED: Mapping[str, Gate] = MappingProxyType(
    {name: column.gate for name, column in {**COLUMNS, **COMPARED}.items() if column.gate is not None}
)
"""How each metric that comparisons judge is judged."""
