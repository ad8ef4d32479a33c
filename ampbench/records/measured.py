"""Raw measurements of a case: rounds, memory, divergence from fp64, and failures.

Only a `Reading` is derived from samples: some other programs keep nothing else.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from ampbench.core.metrics import METRICS
from ampbench.records import (
    Cosine,
    Count,
    ErrorSize,
    KeptShare,
    Magnitude,
    Positive,
    RoundCount,
    Samples,
    Seconds,
    Share,
    Signed,
    Steps,
    StepSeconds,
    check_time,
    one_of,
)
from ampbench.records.kinds import KINDS


class OptimizerGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The settings of one group of an optimizer's parameters at the first step; None: it has no such setting.

    The group has `elements`. `decoupled`: `weight_decay` multiplies the weights instead of adding to the gradient.
    `beta2` is the decay of a running mean of squares (RMSprop's alpha; None if centered), `beta1` that of a running
    mean, `momentum` SGD's. `foreach` and `fused` are as given (None: torch chooses). `capturable`: the step is computed
    in tensors, as for a CUDA graph.
    """

    elements: Count
    lr: Magnitude | None = None
    weight_decay: Magnitude | None = None
    decoupled: bool | None = None
    beta1: Share | None = None
    beta2: Share | None = None
    eps: Magnitude | None = None
    momentum: Magnitude | None = None
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool | None = None


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The optimizer of a case ("torch.optim.AdamW") with its groups, in its order, and its running statistics.

    A group of an optimizer that is not torch's own has a learning rate alone. `running_momenta` are the momenta of the
    modules with running statistics, each once, the largest first. `missed` names the weights that the optimizer lacks,
    of `trained` trained ones; `foreign` counts other tensors that it moves. `least_rate` is the smallest learning rate
    of the schedule, relative to the optimizer's, without the smallest rates with 2% of the sum (None: no schedule).
    """

    optimizer: str
    groups: list[OptimizerGroup] = []
    running_momenta: list[Share] = []
    missed: list[str] = []
    trained: Count = 0
    foreign: Count = 0
    least_rate: Magnitude | None = None


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time of all processors since boot, in kernel ticks."""

    busy: int
    steal: int
    total: int


def parse_cpu_times(stat: str) -> CpuTimes | None:
    """Return the CPU times in the text of /proc/stat; None without any."""
    fields = stat.partition("\n")[0].split()
    if not fields or fields[0] != "cpu":
        return None
    times = [int(field) for field in fields[1:9]]  # guest time, after these, is part of user time
    times += [0] * (8 - len(times))
    idle, steal = times[3] + times[4], times[7]
    return CpuTimes(busy=sum(times) - idle - steal, steal=steal, total=sum(times))


STEAL_SHARE = 0.1
"""A round is unfit from this share of CPU time given to other machines: a step of all threads then waits about every
tenth time slice. Below it, the fastest sample of a build (`stats.round_value`) still escapes."""
OTHER_SHARE = 0.2
"""A round is unfit from this share of CPU time used by other processes: four tenths of a CPU where there are two."""
WAITED_SHARE = 0.05
"""A round on an accelerator is unfit from this share of its time in which the launching thread waited for a processor:
a launch-bound step takes as much longer, over twice the threshold. The load of other processors does not matter."""

KILLED = "killed"
"""The cause of a failure outside the case: the kernel, out of memory, or a person ended its worker."""
OUT_OF_MEMORY = "out of memory"
"""The cause of a failure, or of a trial of a search; smaller sets may still fit, as they mostly take less."""
CAUSES = ("exception", OUT_OF_MEMORY, "memory limit", "time-out", "crash", KILLED, "unknown")
"""Causes of failures; "unknown" in imported runs without one."""
NO_ROOM_OR_TIME = (OUT_OF_MEMORY, "memory limit", "time-out")
"""Causes for which a divergence pass leaves its errors undefined, and the case goes on to its rounds."""
_OF_KINDS = dict.fromkeys(task for row in KINDS.values() for task in row.task_names)
STAGES = ("memory", "divergence", "late", "round", *_OF_KINDS)
"""Where a case can fail: the names of all tasks (`records.wire.Task`)."""
MATMUL, CONV, ATTENTION = MULTIPLYING = "matmul", "conv", "attention"
"""Operations with floating-point work: matrix products, convolutions, fused attention."""
MEMORY_SOURCES = ("allocator", "profiler")
"""Who counts memory: the accelerator's allocator, or the CPU's allocation record."""
NATIVE = "native"
"""Attention in the fast path of `torch.nn.MultiheadAttention` and encoder layers, which ignores torch's switches of
scaled_dot_product_attention."""


class Fitness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How quiet the machine was during a round; None: unknown.

    `steal_share` of CPU time went to other machines, `other_share` to other processes; for `waited_share` of the round
    its launching thread was ready and waited for a processor. `load` is the load average over the last minute,
    `frequency_hz` the CPU's clock, `accelerator_clock_hz` a GPU's without telemetry.
    """

    steal_share: Share | None = None
    other_share: Share | None = None
    waited_share: Share | None = None
    load: Magnitude | None = None
    frequency_hz: Magnitude | None = None
    accelerator_clock_hz: Magnitude | None = None


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The readings of an accelerator's sensors in the windows of a round; None: unknown.

    A thread read them from `source` ("NVML") every `period_seconds`, `readings` times in `window_seconds`.
    `unavailable` says why sensors are missing. `clock_hz` of the cores is the median over all windows, `first_` and
    `last_` are of one window.
    `limited` is the share of readings under each limit of the clock. `power_watts` is the integral of the readings over
    time: each from `power_low_watts` to `power_high_watts`, exact to `power_error_watts`, and a mean over
    `averaged_seconds` (0: of an instant). `processes` are others with memory on the device, in words; they computed for
    `other_share` of the time.
    """

    source: str = ""
    unavailable: str = ""
    period_seconds: Seconds | None = None
    readings: Count = 0
    window_seconds: Seconds | None = None
    clock_hz: Magnitude | None = None
    first_clock_hz: Magnitude | None = None
    last_clock_hz: Magnitude | None = None
    limited: dict[str, Share] = {}
    power_watts: Magnitude | None = None
    power_low_watts: Magnitude | None = None
    power_high_watts: Magnitude | None = None
    power_error_watts: Magnitude | None = None
    averaged_seconds: Seconds | None = None
    processes: list[str] = []
    other_share: Share | None = None


POWER_CAP, HEAT, SLOWDOWN, POWER_BRAKE = "power limit", "heat", "hardware slowdown", "power brake"
"""Limits of a clock. Under load a device is always at its power limit."""
THROTTLES = frozenset({HEAT, SLOWDOWN, POWER_BRAKE})
"""Limits under which a round is unfit: heat, halved clocks, a power supply's brake."""


class Round(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One case timed in one fresh process over several builds, in seconds per step.

    `samples[b]` are of build `b`, each a mean over `steps_per_sample` steps; `cpu_samples[b]` are the CPU seconds of
    the calling thread (None: an accelerator, or the step itself waits). `server` numbers the parent process, whose
    children share its luck. `control`: the second of two measurements of one case; `confirmation`: measured to confirm
    a change. `compile_seconds` is the first, compiling call. `skipped_steps` counts samples in which GradScaler,
    settled at `scaler_scale`, skipped a step; `param_nonfinite` the parameter elements that are not finite after a
    build, in the worst build (None: inference). `seconds` is the cost of the whole round. `changed_in_place` names
    inputs, targets and, in inference, weights and buffers that a step changed: they are restored before every sample,
    which is then one step. `comes_compiled`: the user's code compiled the network, or a part of it; `no_grad`: it
    refuses inference mode. `fp32_products` maps "matmul" and "conv" to the dtype that factors of fp32 products were
    rounded to (None: weights are in half).

    On an accelerator a round warms up, `steady` if time and clock came to rest; `windows[b]` are over a second or more,
    and `samples[b]` are their parts. `burst_seconds` is the fastest sample, warming included.
    """

    case_id: str
    round: RoundCount
    server: RoundCount
    control: bool = False
    confirmation: bool = False
    samples: Samples
    steps_per_sample: list[Positive]
    warmup_steps: list[Count]
    items_per_step: Magnitude
    compile_seconds: Seconds | None = None
    weights_digest: str
    scaler_scale: Magnitude | None = None
    skipped_steps: Count | None = None
    param_nonfinite: Count | None = None
    changed_in_place: list[str] = []
    comes_compiled: bool = False
    no_grad: bool = False
    fp32_products: dict[str, str] | None = None
    cpu_samples: list[list[Seconds]] | None = None
    fitness: Fitness = Fitness()
    steady: bool | None = None
    windows: Samples | None = None
    burst_seconds: StepSeconds | None = None
    telemetry: Telemetry | None = None
    seconds: Seconds
    finished_at: str

    def __post_init__(self) -> None:
        """Raise `ValueError` for CPU times of other samples, and an end that is no time."""
        check_time("finished_at", self.finished_at)
        if self.cpu_samples is not None and list(map(len, self.cpu_samples)) != list(map(len, self.samples)):
            raise ValueError(f"CPU times that do not match the samples, in a round of {self.case_id}")


class MemoryPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Peak memory of one step in bytes, and its work, from an untimed pass; None: unknown, or not in this phase.

    `peak_bytes` holds parameters, buffers, inputs, gradients, optimizer state and everything else alive at the peak;
    the parts are known after the step. `flops` are algorithmic (a multiply-add is two), by dtype; `flops_by_operation`,
    by `MULTIPLYING` and dtype, leave out masked attention. `least_bytes` is a step's least traffic: weights, inputs and
    outputs once, in training weights and optimizer state written once more, without gradients and activations.
    `attention` counts the kernels of attention that ran, of `SDPA` and `NATIVE`. `master_bytes` of `parameter_bytes`
    are master weights.

    On an accelerator `reserved_bytes` is the most that the caching allocator held. The profiler counts `busy_seconds`
    of computing and copying in a step, overlaps once. `graphs_left_aside` is why a mode of `WITH_GRAPHS` recorded no
    graph, or not all.
    """

    case_id: str
    source: Annotated[str, one_of(*MEMORY_SOURCES)]
    peak_bytes: Count
    parameter_bytes: Count
    buffer_bytes: Count
    input_bytes: Count
    gradient_bytes: Count | None = None
    optimizer_bytes: Count | None = None
    flops: dict[str, Count] | None = None
    flops_by_operation: dict[str, dict[str, Count]] | None = None
    least_bytes: Count | None = None
    attention: dict[str, Count] | None = None
    reserved_bytes: Count | None = None
    parameter_count: Count | None = None
    master_bytes: Count | None = None
    busy_seconds: Seconds | None = None
    graphs_left_aside: list[str] = []

    @property
    def bytes_per_parameter(self) -> float | None:
        """Bytes of a parameter between two steps of training: weight, gradient, master weight, state."""
        if self.gradient_bytes is None or self.optimizer_bytes is None or not self.parameter_count:
            return None
        return (self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes) / self.parameter_count


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The score of a network on held-out data after `step` steps of training.

    `loss` is None if it is not finite. `correct` of `decisions` are the targets' (None: no classifier).
    """

    step: Count
    loss: Signed | None = None
    correct: Count | None = None
    decisions: Count | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case that could not be measured: where it failed, by what, and the last frames and message of its error."""

    case_id: str
    stage: Annotated[str, one_of(*STAGES)]
    cause: Annotated[str, one_of(*CAUSES)]
    message: str
    frames: list[str] = []

    @property
    def final(self) -> bool:
        """Whether the case itself failed; a killed one is measured again when the run is resumed."""
        return self.cause != KILLED

    @property
    def said(self) -> str:
        """Why it failed: the message of an exception, which names its class; else cause and message."""
        known = [self.cause] if self.cause != "exception" or not self.message else []
        return ": ".join([*known, *([self.message] if self.message else [])])


class Skip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case that was not measured, with the reason: unsupported here, no loss given, not reached in time."""

    case_id: str
    reason: str


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A number that another program kept without the samples behind it: the `value` of one of `metrics.METRICS`.

    It fills that column if the run has no raw entry to derive it from.
    """

    case_id: str
    metric: Annotated[str, one_of(*METRICS)]
    value: Signed


LOSS_NOT_FINITE = "the loss is not finite"
"""A note of a divergence."""
CHANCE = (
    "its error means nothing: two fp64 steps already lie {:.1e} apart, as the network draws random numbers, other ones "
    "in other dtypes, or keeps state of its own"
)
"""A note of a divergence with this `chance_rel_l2`."""
ZERO_REFERENCE = "the reference {} is zero"
"""Why an error relative to zero is undefined."""

CARRIES = 0.01
"""A tensor is judged by itself from this share of |Δ*|²."""
LOWEST_BIN, BINS = -13, 26
"""The first bin of `Update.energies`, and how many there are: up to 2**12 times half a unit in the last place."""


class Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How one optimizer step changes the stored weights, ΔL, against the intended change Δ* in fp64.

    Both begin after `steps` fp32 steps (0: at the workload's own weights and `Workload.optimizer_state`), with weights,
    state and gradients rounded to what the precision stores; most weights are in `storage` ("bf16"). `intended` is the
    dtype of Δ*: "fp32" if the optimizer refuses fp64. `undefined` says why the numbers are None.

    `rel_l2` is |ΔL - Δ*| / |Δ*|, `kept` κ = <ΔL, Δ*> / |Δ*|², `noise` |ΔL - κΔ*| / |Δ*|. `swallowed` of the `moving`
    elements (Δ* is not zero) do not move, and carry the share `swallowed_energy` of |Δ*|². `worst_parameter` keeps
    least of those that carry `CARRIES` of |Δ*|². `nonfinite` parameter elements are not finite after the step. If the
    optimizer draws random numbers, `kept` is a mean of several steps with the standard error `kept_error`. With
    `counted_state`, a key of the optimizer's state, ΔL is what weight and that state hold together (Kahan summation).

    In half, and where `rel_l2` is more than a hundredth, `gradient_rel_l2`, `state_rel_l2` and `storage_rel_l2` are the
    errors of the precision's gradients, state or weights alone, all else in fp64. In half, `energies[b]` is the share
    of |Δ*|² in elements with |Δ*| from 2**(b + `LOWEST_BIN`) to twice that, times half a unit in the last place of the
    stored weight; the first and the last bin hold all beyond, too.
    """

    steps: Steps
    undefined: str = ""
    storage: str = ""
    intended: str = "fp64"
    rel_l2: ErrorSize | None = None
    kept: KeptShare | None = None
    kept_error: ErrorSize | None = None
    noise: ErrorSize | None = None
    moving: Count | None = None
    swallowed: Count | None = None
    swallowed_energy: Share | None = None
    worst_parameter: str | None = None
    worst_kept: KeptShare | None = None
    nonfinite: Count | None = None
    counted_state: str = ""
    gradient_rel_l2: ErrorSize | None = None
    state_rel_l2: ErrorSize | None = None
    storage_rel_l2: ErrorSize | None = None
    energies: list[Share] | None = None


class OutputError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The error of one output tensor of a step; None: undefined, for the reason `undefined`.

    `name` is its path in the network's output ("scores", "[1]"; "" for a lone tensor). `rel_l2` is the Euclidean norm
    of its error, relative to its norm in the reference, `floor_rel_l2` the error of merely rounding the reference to
    the precision's dtype. `centred`: it holds logits, and rows are compared without their mean over classes, because
    softmax ignores a shift. `over_spread` is the norm of the error relative to the norm of the spread between rows
    (first dimension) of the reference, or of its targets if the reference is zero (None: no spread). Rows are samples:
    `sample_p99_rel_l2` is the 99% quantile of their relative errors, linear between order statistics, and
    `sample_worst_rel_l2` the largest.
    """

    name: str
    elements: Count
    centred: bool = False
    rel_l2: ErrorSize | None = None
    floor_rel_l2: ErrorSize | None = None
    over_spread: ErrorSize | None = None
    undefined: str = ""
    sample_p99_rel_l2: ErrorSize | None = None
    sample_worst_rel_l2: ErrorSize | None = None


class Predictions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The distance of a classifier's probabilities from the reference's, over `rows` of logits in `outputs`.

    Probabilities are the softmax of logits, or the output itself if the reference's rows are probabilities or their
    logarithms. `kl_mean` and `kl_p99` are mean and 99% quantile over rows of the Kullback-Leibler divergence from the
    reference, in nats (None: a row is not finite, or has a probability of 0 where the reference does not). `gap_mean`
    and `gap_p99` are the same of |ln p - ln r| at the targets (None: no integer targets, or infinite).
    """

    outputs: list[str]
    rows: Count
    kl_mean: ErrorSize | None = None
    kl_p99: ErrorSize | None = None
    gap_mean: ErrorSize | None = None
    gap_p99: ErrorSize | None = None


ASKED_AGREEMENT = 0.99
"""The agreement that further batches must prove: the default of advice."""


class FurtherDecisions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A classifier's decisions on further batches, in forward passes: `agreeing` of `decisions` are the reference's.

    `near_ties` are flips as in `OutputDivergence`.
    """

    agreeing: Count
    decisions: Count
    near_ties: Count = 0


class ReferenceStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The reference step of errors, on `device`, in `dtype`.

    `dtype` is "fp64"; "fp32" (on the case's device) if the fp64 step failed with `error`; "" if fp32 failed, too. Norms
    are of the finite elements of all outputs and of all gradients (None: none, or out of fp64's range), `output_shapes`
    the shapes of floating outputs. Sketches (`ampbench.core.stats`) compare the fp64 results of two commits. `loss` is
    None in inference, and if it is not finite.
    """

    device: str
    dtype: str = "fp64"
    error: str = ""
    loss: Signed | None = None
    output_norm: Magnitude | None = None
    output_shapes: list[list[Count]] | None = None
    output_sketch: str | None = None
    grad_norm: Magnitude | None = None
    grad_sketch: str | None = None


class OutputDivergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The distance of a step's outputs from the reference's; None: undefined; `undefined` is the reason for `rel_l2`.

    Of the `elements`, `reference_nonfinite` are not finite in the reference (`reference_nan` NaN), `nonfinite` are not
    finite only here (`nan` NaN), `unlike` are not the reference's infinity, `fp32_nonfinite` are not finite in fp32
    alone (None: no fp32 beside the reference). `rel_l2` is the error of all elements, `floor_rel_l2` that of merely
    rounding the reference to the precision's dtype, `fp32_rel_l2` that of fp32 (tf32 off) on the same device.
    `predictions` are None if there is no classifier. `argmax_agreeing` of `argmax_decisions` are the reference's,
    `further` those of further batches (None: not needed); of the others, `near_ties` have two largest values in the
    reference that differ by no more than rounding to the precision's dtype may (None: all agree).
    """

    rel_l2: ErrorSize | None = None
    max_abs: Magnitude | None = None
    cosine: Cosine | None = None
    floor_rel_l2: ErrorSize | None = None
    fp32_rel_l2: ErrorSize | None = None
    undefined: str = ""
    elements: Count | None = None
    nonfinite: Count = 0
    nan: Count | None = None
    unlike: Count | None = None
    fp32_nonfinite: Count | None = None
    reference_nonfinite: Count | None = None
    reference_nan: Count | None = None
    tensors: list[OutputError] | None = None
    predictions: Predictions | None = None
    argmax_agreeing: Count | None = None
    argmax_decisions: Count | None = None
    near_ties: Count | None = None
    further: FurtherDecisions | None = None

    @property
    def flipped(self) -> tuple[int, int] | None:
        """The decisions that differ from the reference's, near-ties apart, and all decisions; None: no classifier."""
        if self.decided is None:
            return None
        agreeing, decisions = self.decided
        return decisions - agreeing - (self.near_ties or 0) - (self.further.near_ties if self.further else 0), decisions

    @property
    def decided(self) -> tuple[int, int] | None:
        """The decisions that equal the reference's, and all decisions, with further batches; None: no classifier."""
        if self.argmax_agreeing is None or self.argmax_decisions is None:
            return None
        more = (self.further.agreeing, self.further.decisions) if self.further else (0, 0)
        return self.argmax_agreeing + more[0], self.argmax_decisions + more[1]

    @property
    def noisiest(self) -> OutputError | None:
        """The tensor with the largest error relative to the spread between its rows; None: unknown.

        A classifier's is left out: it is judged by its decisions and probabilities, and untrained, its rows may be
        alike.
        """
        decided = self.predictions.outputs if self.predictions is not None else ()
        known = [
            tensor for tensor in self.tensors or () if tensor.over_spread is not None and tensor.name not in decided
        ]
        return max(known, key=lambda tensor: tensor.over_spread or 0.0, default=None)

    @property
    def worst(self) -> OutputError | None:
        """The tensor with the largest relative error, which is judged; None: unknown."""
        if self.rel_l2 is None or not self.tensors:
            return None
        defined = [tensor for tensor in self.tensors if tensor.rel_l2 is not None]
        return max(defined, key=lambda tensor: tensor.rel_l2 or 0.0, default=None)


class GradientDivergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The distance of a step's gradients from the reference's; None: undefined; `undefined` is the reason for `rel_l2`.

    Counts are as in `OutputDivergence`; `flushed` of the `elements` are zero only here. `worst_parameter` has the
    largest error of its gradient, `tensor_parameter` the largest of those with at least a hundredth of the norm.
    `noise` is the standard deviation of a batch's fp64 gradient: the distance of two batches' gradients over the square
    root of two or, of a single batch, half the distance of its halves' gradients, whose expected square is the same. It
    is relative to the gradients' norm, `tensor_noise` to the norm of `tensor_parameter`; `no_noise` is the code of why
    they are None. Empty in inference.
    """

    rel_l2: ErrorSize | None = None
    undefined: str = ""
    elements: Count | None = None
    flushed: Count | None = None
    nonfinite: Count | None = None
    nan: Count | None = None
    reference_nonfinite: Count | None = None
    reference_nan: Count | None = None
    worst_parameter: str | None = None
    tensor_parameter: str | None = None
    tensor_rel_l2: ErrorSize | None = None
    noise: ErrorSize | None = None
    tensor_noise: ErrorSize | None = None
    no_noise: str = ""


class LossUnmeasured(StrEnum):
    """Why the loss was not measured apart from its network."""

    OWN_STEP = "own-step"
    NO_GRADIENT = "no-gradient"
    """The network computes the loss itself."""
    RANDOM = "random"
    FAILED = "failed"


class LossAlone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A loss in the arithmetic of a precision against fp32, at the network's outputs, times 4, 16 and 64, and shifted.

    A `constant` of operation `op` is `rounded` to 0, 1 or infinity in `dtype`; `guards` a logarithm or a root. The loss
    or its gradient is finite in fp32 alone at `nonfinite_at` ("": nowhere). The gradient's largest error is
    `grad_rel_l2`, at `grad_at` ("x16", "+16").
    """

    unmeasured: str = ""
    constant: Signed | None = None
    rounded: str = ""
    dtype: str = ""
    op: str = ""
    guards: bool = False
    nonfinite_at: str = ""
    grad_rel_l2: ErrorSize | None = None
    grad_at: str = ""


class Divergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The divergence of one step of a case from the `reference`; None: undefined, or not measured in this phase.

    Errors are Euclidean norms, relative to the reference's; a complex element counts as two. `notes` say what is
    undefined, and why. `param_rel_l2` is the error of parameters and buffers after one optimizer step;
    `param_nonfinite` of them are not finite after it or, if more, after that of `update`. GradScaler skipped
    `skipped_steps` after it had settled at `scaler_scale`. `repeatable`: the step, run twice, gave the same bits.
    `chance_rel_l2` is the distance of two fp64 steps, given only if the errors are due to chance (random numbers,
    hidden state) and say nothing about the precision. `recipe` is None in inference. `fp32_products` is as in `Round`.
    `input_largest` is the largest finite magnitude of floating inputs (masks apart), `target_largest` that of targets
    of the size of an output in half, over all batches. `statistics_stall` is how far running statistics, as stored,
    stop from those of batches, relative to themselves: at least half a unit in the last place over the momentum.
    `loss_alone` is None where nothing is rounded to half.
    """

    case_id: str
    weights_digest: str
    inputs_digest: str
    reference: ReferenceStep
    output: OutputDivergence = OutputDivergence()
    gradient: GradientDivergence = GradientDivergence()
    loss: Signed | None = None
    param_rel_l2: ErrorSize | None = None
    param_nonfinite: Count | None = None
    update: Update | None = None
    scaler_scale: Magnitude | None = None
    skipped_steps: Count | None = None
    repeatable: bool | None = None
    chance_rel_l2: ErrorSize | None = None
    recipe: Recipe | None = None
    fp32_products: dict[str, str] | None = None
    input_largest: Magnitude | None = None
    target_largest: Magnitude | None = None
    statistics_stall: ErrorSize | None = None
    loss_alone: LossAlone | None = None
    notes: list[str] = []

    @property
    def loss_is_lost(self) -> bool:
        """Whether this is a training with a loss that is not finite."""
        return self.gradient.elements is not None and self.loss is None


class Stop(StrEnum):
    """Why the fp32 steps to the late place ended, or why there are none."""

    STEPS = "steps"
    PASSES = "passes"
    HALVED = "loss halved"
    FLOPS = "FLOPs"
    OWN_STATE = "own optimizer state"
    NO_OPTIMIZER = "no optimizer"
    FAILED = "failed"


class Late(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The divergence of one step of a case late in training: after `steps` fp32 steps over `batches` batches.

    It is None where there is no such place, by `stop`; `undefined` is the error where the steps or the step failed.
    """

    case_id: str
    stop: Annotated[str, one_of(*Stop)]
    steps: Steps = 0
    batches: Count = 0
    undefined: str = ""
    divergence: Divergence | None = None
