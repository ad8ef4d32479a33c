"""What is measured of a case, raw: rounds, memory, how far its step lies from the same in fp64, and failures.

Nothing here is derived from samples but a `Reading`, which is all that some other programs keep. What trains the
network and what the kernel counts of the machine's processors meanwhile stand beside them.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from ampbench.records.bounds import (
    Celsius,
    Cosine,
    Count,
    ErrorSize,
    Fraction,
    KeptShare,
    Magnitude,
    Positive,
    Rate,
    RoundCount,
    Seconds,
    Share,
    ShortSeconds,
    Signed,
    Steps,
    StepSeconds,
    Watts,
    one_of,
    require_parts,
)
from ampbench.records.kinds import KINDS


class OptimizerGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The settings of one group of an optimizer's parameters, which have `elements`; None: it has no such setting.

    They are those of the first step, before any schedule. `decoupled` tells whether `weight_decay` multiplies the
    weights by themselves instead of being added to the gradient. `beta2` is the decay of a running mean of squares
    (of RMSprop its alpha, None where it is centered), `beta1` that of a running mean, `momentum` SGD's. `foreach` and
    `fused` are as given (None: torch chooses), and `capturable` tells that the step is computed in tensors, as for a
    CUDA graph.
    """

    elements: Count
    lr: Magnitude | None = None
    weight_decay: Magnitude | None = None
    decoupled: bool | None = None
    beta1: Fraction | None = None
    beta2: Fraction | None = None
    eps: Magnitude | None = None
    momentum: Magnitude | None = None
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool | None = None


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What trains a case: the class of its optimizer ("torch.optim.AdamW") with its groups, and running statistics.

    `groups` are in the optimizer's order; those of an optimizer that is not torch's own have a learning rate alone.
    `running_momenta` are the momenta of the modules that keep running statistics of batches, each once, the largest
    first.
    """

    optimizer: str
    groups: list[OptimizerGroup] = []
    running_momenta: list[Fraction] = []


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time of all processors since boot, in kernel ticks."""

    busy: int
    steal: int
    total: int


def parse_cpu_times(stat: str) -> CpuTimes | None:
    """Read the first line of /proc/stat; None where there is none."""
    fields = stat.partition("\n")[0].split()
    if not fields or fields[0] != "cpu":
        return None
    times = [int(field) for field in fields[1:9]]  # guest time, after these, is part of user time
    times += [0] * (8 - len(times))
    idle, steal = times[3] + times[4], times[7]
    return CpuTimes(busy=sum(times) - idle - steal, steal=steal, total=sum(times))


STEAL_SHARE = 0.1
"""Share of CPU time given to other machines from which a round is unfit. A step of all threads then waits about every
tenth time slice; below, the fastest sample of a build (`stats.round_value`) still escapes it."""

OTHER_SHARE = 0.2
"""Share of this machine's CPU time used by other processes from which a round is unfit: on the smallest machines, with
two CPUs, four tenths of one of them, so that threads that wait for each other wait for a processor as well."""

KILLED = "killed"
"""The cause of a failure that tells nothing of the case: the kernel, out of memory, or a person ended its worker."""
OUT_OF_MEMORY = "out of memory"
"""The cause of a failure, and of a trial of a search, that found no room. Keeping less takes less, as a rule, so such a
trial says nothing of smaller sets."""
CAUSES = ("exception", OUT_OF_MEMORY, "memory limit", "time-out", "crash", KILLED, "unknown")
"""By what a case can fail; "unknown" where another program measured and did not tell."""
TOO_LITTLE_FREE, BUSY = "too little free", "device busy"
ALONE = (TOO_LITTLE_FREE, OUT_OF_MEMORY, BUSY)
"""Why lanes are measured one at a time on an accelerator: beside the others' contexts less was free than the case takes
at its peak, or a lane that has room alone ran out of memory, or the device serves one process only."""
STAGES = ("memory", "divergence", "round", *dict.fromkeys(task for row in KINDS.values() for task in row.task_names))
"""Where: the names of what workers do (`records.wire.Task`), for every run and for each kind of run."""
MATMUL, CONV, ATTENTION = MULTIPLYING = "matmul", "conv", "attention"
"""What floating-point operations are done in: matrix products, convolutions, fused attention."""
MEMORY_SOURCES = ("allocator", "profiler")
"""Who counts memory: the accelerator's own count, and the CPU's allocation record."""
NATIVE = "native"
"""Attention within the fast path of `torch.nn.MultiheadAttention` and encoder layers: torch's switches of
scaled_dot_product_attention do not reach it."""


class Fitness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How quiet the machine was during a round; None where the machine does not tell.

    `steal_share` is the share of CPU time the hypervisor gave to others (0-1), `other_share` the share of this
    machine's CPU time that other processes used, `load` the kernel's load average over the last minute,
    `involuntary_switches` how often the kernel took the processor away, `frequency_hz` the CPU's clock,
    `temperature_celsius` and `accelerator_clock_hz` the accelerator's.
    """

    steal_share: Share | None = None
    other_share: Share | None = None
    load: Rate | None = None
    involuntary_switches: Count | None = None
    frequency_hz: Rate | None = None
    temperature_celsius: Celsius | None = None
    accelerator_clock_hz: Rate | None = None


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What an accelerator told of itself in the windows of a round, read every `period_seconds` by a thread beside it.

    `source` says who told ("NVML", "sysfs"), `unavailable` why nothing is told, nothing any more or not all of it; None
    is a number that is not told. `readings` were had in the windows, which lasted `window_seconds` in all; one took
    `reading_seconds` at the median. Clocks are those of the device's cores: `clock_hz` the median over all windows,
    `first_clock_hz` and `last_clock_hz` of the first and the last window, `warm_clock_hz` the highest seen, warming
    included. `limited` are the shares of the readings in which something held the clock down, by the words of `LIMITS`.
    `power_watts` is the mean power over the windows, the integral of the readings by their time; these lay between
    `power_low_watts` and `power_high_watts`, are exact to `power_error_watts` and each a mean over `averaged_seconds`
    (0: of no time, or of that since the one before). `temperature_celsius` is the highest. `processes` are others that
    had memory of the device, with what they had, in words, `other_share` is the share of time in which they computed.
    """

    source: str = ""
    unavailable: str = ""
    period_seconds: ShortSeconds | None = None
    reading_seconds: ShortSeconds | None = None
    readings: Count = 0
    window_seconds: Seconds | None = None
    clock_hz: Rate | None = None
    first_clock_hz: Rate | None = None
    last_clock_hz: Rate | None = None
    warm_clock_hz: Rate | None = None
    limited: dict[str, Share] = {}
    power_watts: Watts | None = None
    power_low_watts: Watts | None = None
    power_high_watts: Watts | None = None
    power_error_watts: Watts | None = None
    averaged_seconds: ShortSeconds | None = None
    temperature_celsius: Celsius | None = None
    processes: list[str] = []
    other_share: Share | None = None


POWER_CAP, HEAT, SLOWDOWN, POWER_BRAKE = "power limit", "heat", "hardware slowdown", "power brake"
LIMITS = (POWER_CAP, HEAT, SLOWDOWN, POWER_BRAKE, "current limit", "sync boost", "set clocks")
"""What holds a clock down. A device at its power limit runs as it always does under that load; other limits but heat
and faults were set by someone."""
THROTTLES = frozenset({HEAT, SLOWDOWN, POWER_BRAKE})
"""Those in which a round is unfit: heat, a hardware slowdown (halved clocks and less), a power supply's brake."""


class Round(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One case timed in one fresh process over several builds.

    `samples[b]` are the seconds per step of build `b`, each the mean over `steps_per_sample` steps, `cpu_samples[b]`
    the CPU seconds per step of the thread that called it (None: on an accelerator, or where the step itself waits, so
    that the two differ with nobody else about). `server` numbers the server the process came from (children of one
    server share their luck). `control` marks the second of two measurements of one cell, `confirmation` a round
    measured to confirm a change seen before. `compile_seconds` is the time of the first, compiling call (path compiled
    or traced). `items_per_step` is what throughput counts. `skipped_steps` counts samples in which GradScaler, settled
    at `scaler_scale`, skipped a step. `param_nonfinite` counts elements of the parameters that are not finite after
    the last sample of a build, in the build that has most (None: in inference). `seconds` is what the round cost in
    all. `changed_in_place` names what a step changed of its inputs, targets and, in inference, weights and buffers: it
    was put back before every sample, which is then one step. `comes_compiled` tells that
    the user's code had the network, or a part of it, compiled.
    `fp32_products` says to which dtype ("tf32", "bf16", "fp16") factors of products ("matmul", "conv") of fp32 numbers
    were rounded in the process, under the case's switches; {}: none was (None: weights are stored in half).
    `free_bytes` is what was free of an accelerator's memory once the last build had given its own back (None: a CPU, or
    the driver does not say). `alone` is why, in a block of an A/B session, the other lanes held nothing of the
    accelerator meanwhile: one of `ALONE`, or "" where they did, or where there were no others.

    On an accelerator a round is warmed up for `warm_seconds`, `steady` telling whether time and clock had come to rest,
    and `windows[b]` are the seconds per step over windows of a second and more of build `b`, of which `samples[b]` are
    parts: what the device keeps up. `burst_seconds` are those of the fastest of all samples, warming included, and
    `telemetry` is what the device told meanwhile. With `state_on_host` what training puts back before every sample lay
    in the host's memory, as the device had no room for it.
    """

    case_id: str
    round: RoundCount
    server: RoundCount
    control: bool = False
    confirmation: bool = False
    samples: list[list[StepSeconds]]
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
    fp32_products: dict[str, str] | None = None
    cpu_samples: list[list[ShortSeconds]] | None = None
    rss_peak_bytes: Count | None = None
    free_bytes: Count | None = None
    alone: Annotated[str, one_of("", *ALONE)] = ""
    fitness: Fitness = Fitness()
    warm_seconds: Seconds | None = None
    steady: bool | None = None
    windows: list[list[StepSeconds]] | None = None
    burst_seconds: StepSeconds | None = None
    telemetry: Telemetry | None = None
    state_on_host: bool = False
    seconds: Seconds
    finished_at: str

    def __post_init__(self) -> None:
        """Raise `ValueError` where samples are missing, or times that should be of them are not."""
        of = f"of {self.case_id}"
        if not (self.samples and all(self.samples)):
            raise ValueError(f"a round without samples {of}")
        if self.windows is not None and not (self.windows and all(self.windows)):
            raise ValueError(f"a round whose windows are empty, {of}")
        if self.cpu_samples is not None and list(map(len, self.cpu_samples)) != list(map(len, self.samples)):
            raise ValueError(f"CPU times that are not those of the samples, in a round {of}")


class MemoryPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The peak of one step's memory, in bytes, from a separate, untimed pass.

    `source` is one of `MEMORY_SOURCES`. `peak_bytes` holds parameters, buffers, inputs, gradients, optimizer state and
    everything else alive at the peak; the parts are what is known by name after the step (None: this phase has none),
    `rss_bytes` the process' resident set, which holds the interpreter and torch itself too and is never compared with
    the other numbers. `flops` are the algorithmic FLOPs of the step (a multiply-add is two) by the dtype of what is
    multiplied ("bf16"), counted in the same pass (None: not counted), `flops_by_operation` those of them that no kernel
    can leave out, by operation (`MULTIPLYING`) and dtype: of causal attention what its mask leaves. `least_bytes` are
    read and written by any step at least: weights and inputs that an op uses in whole, once, outputs once, and in
    training weights and optimizer state once more where they are written, each in the dtype it is stored in, without
    gradients and activations (both None: not counted). `attention` is how often which kernel of
    attention ran in it: those of `SDPA`, and `NATIVE` (None: not known).

    On an accelerator `reserved_bytes` is the most that the caching allocator had taken from the device at once during
    the step, what it held free and what was there before the case included, `workspace_bytes` what a step that was
    thrown away before has left allocated: libraries' workspaces, which are not in the peak. None of both on a CPU.
    `parameter_count` is how many the network has, trained or not (None: not known); `master_bytes` are those of
    `parameter_bytes` that are master weights'.

    `busy_seconds` is for how long the accelerator computes or copies in a step, by the profiler in further steps of the
    pass; what runs at the same time counts once (None: on a CPU, and for the reason `busy_undefined`).
    `graphs_left_aside` is why torch.compile recorded no graphs, or not all, in a mode that is to (`WITH_GRAPHS`).
    """

    case_id: str
    source: Annotated[str, one_of(*MEMORY_SOURCES)]
    peak_bytes: Count
    parameter_bytes: Count
    buffer_bytes: Count
    input_bytes: Count
    gradient_bytes: Count | None = None
    optimizer_bytes: Count | None = None
    rss_bytes: Count | None = None
    flops: dict[str, Count] | None = None
    flops_by_operation: dict[str, dict[str, Count]] | None = None
    least_bytes: Count | None = None
    attention: dict[str, Count] | None = None
    reserved_bytes: Count | None = None
    workspace_bytes: Count | None = None
    parameter_count: Count | None = None
    master_bytes: Count | None = None
    busy_seconds: Seconds | None = None
    busy_undefined: str = ""
    graphs_left_aside: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` where a part is more than the peak, or than the parameters."""
        parts = ("parameter_bytes", "buffer_bytes", "input_bytes", "gradient_bytes", "optimizer_bytes")
        require_parts(self, *((part, "peak_bytes") for part in parts), ("master_bytes", "parameter_bytes"))

    @property
    def bytes_per_parameter(self) -> float | None:
        """What a parameter takes between two steps of training: weight, gradient, master weight, state.

        None in inference, and where it is not known how many there are.
        """
        if self.gradient_bytes is None or self.optimizer_bytes is None or not self.parameter_count:
            return None
        return (self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes) / self.parameter_count


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How a network does on held-out data after `step` steps of training (0: before the first).

    `loss` is None where it is not finite. Of `decisions`, `correct` are the targets' (None: it is no classifier).
    """

    step: Count
    loss: Signed | None = None
    correct: Count | None = None
    decisions: Count | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` where more are correct than were decided."""
        require_parts(self, ("correct", "decisions"))


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case that could not be measured: where it broke (`stage`, one of `STAGES`), by what (`cause`, one of `CAUSES`).

    `message` is what it said, `frames` are its last ones.
    """

    case_id: str
    stage: Annotated[str, one_of(*STAGES)]
    cause: Annotated[str, one_of(*CAUSES)]
    message: str
    frames: list[str] = []

    @property
    def final(self) -> bool:
        """Whether the case itself failed; what was killed by someone else is tried again when the run is resumed."""
        return self.cause != KILLED

    @property
    def said(self) -> str:
        """Why it failed: the message of an exception, which names its class; else the cause before what it said."""
        known = [self.cause] if self.cause != "exception" or not self.message else []
        return ": ".join([*known, *([self.message] if self.message else [])])


class Skip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case that was not measured, with the reason: unsupported here, no loss given, not reached in time."""

    case_id: str
    reason: str


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A number that another program kept without the samples behind it, in an imported run.

    `metric` is a column of `metrics.METRICS`, `value` is in its unit. It fills the column where the run has no raw
    entry to derive it from.
    """

    case_id: str
    metric: str
    value: Signed


LOSS_NOT_FINITE = "the loss is not finite"
"""What a divergence notes of such a training step."""
CHANCE = (
    "its error means nothing: two fp64 steps already lie {:.1e} apart, as the network draws random numbers, other ones "
    "in other dtypes, or keeps state of its own"
)
"""What is said of a case whose `chance_rel_l2` is that number."""

ZERO_REFERENCE = "the reference {} is zero"
"""Why an error relative to something that is exactly zero is undefined."""

CARRIES = 0.01
"""The least share of |Δ*|² with which a tensor is judged by itself."""
LOWEST_BIN, BINS = -13, 26
"""The first bin of `Update.sizes`, and how many there are: up to 2**12 times half a unit in the last place."""


class Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What one optimizer step changes of the stored weights, ΔL, beside what it should change, Δ*, in fp64.

    Both begin where `steps` fp32 steps led (0: the workload's own weights with `Workload.optimizer_state`), with
    weights, state and gradients rounded to what the precision stores, most weights in the dtype `storage` ("bf16").
    `intended` is the dtype of Δ*: "fp64", or "fp32" where the optimizer refuses fp64. `rates` are the learning rates.
    `undefined` says why the numbers are None.

    `rel_l2` is |ΔL - Δ*| / |Δ*|, `kept` κ = <ΔL, Δ*> / |Δ*|², `noise` |ΔL - κΔ*| / |Δ*|; `swallowed` of the `moving`
    elements (Δ* is not zero) do not move, and carry the share `swallowed_energy` of |Δ*|². `worst_parameter` keeps
    least, `worst_kept`, of those that carry `CARRIES` of |Δ*|². `nonfinite` elements of the parameters are not finite
    after the step. Where the optimizer draws random numbers, `kept` is a mean of several steps and `kept_error` its
    standard error. With `counted_state`, a key of the optimizer's state, ΔL is what weight and that state hold together
    (Kahan summation).

    In half, `gradient_rel_l2`, `state_rel_l2` and `storage_rel_l2` are the errors by the precision's gradients, its
    rounded state, its rounded weights alone, all else in fp64. `sizes[b]` counts elements with |Δ*| of
    2**(b + `LOWEST_BIN`) to twice that, times half a unit in the last place of the stored weight, `energies[b]` is
    their share of |Δ*|²; the first and the last bin have all beyond, too.
    """

    steps: Steps
    undefined: str = ""
    storage: str = ""
    intended: str = "fp64"
    rates: list[Signed] = []
    rel_l2: ErrorSize | None = None
    kept: KeptShare | None = None
    kept_error: ErrorSize | None = None
    noise: ErrorSize | None = None
    moving: Count | None = None
    swallowed: Count | None = None
    swallowed_energy: Share | None = None
    worst_parameter: str | None = None
    worst_kept: KeptShare | None = None
    worst_rel_l2: ErrorSize | None = None
    nonfinite: Count | None = None
    counted_state: str = ""
    gradient_rel_l2: ErrorSize | None = None
    state_rel_l2: ErrorSize | None = None
    storage_rel_l2: ErrorSize | None = None
    sizes: list[Count] | None = None
    energies: list[Share] | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` where more is swallowed than should move."""
        require_parts(self, ("swallowed", "moving"))


class OutputError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The error of one output tensor of a step; None: undefined, as `undefined` or `sample_undefined` says.

    `name` is the way to it in what the network returns ("scores", "[1]"), "" of a tensor alone. `rel_l2` is the
    Euclidean norm of its error, relative to its norm in the reference; `centred`: it holds logits, and each row, less
    its mean over classes, is compared, as softmax does not see a shift. `floor_rel_l2` is the same of merely rounding
    the reference to the precision's dtype. `over_spread` is the norm of the error relative to that of what the rows of
    the reference (of its targets where it is zero), in its first dimension, differ by: each less their mean (None: they
    do not differ). Samples lie there, too, and the error of each is relative to itself: `sample_p99_rel_l2` is the 99%
    quantile (linear between order statistics), `sample_worst_rel_l2` the largest of `sample_count` that are defined.
    """

    name: str
    elements: Count
    centred: bool = False
    rel_l2: ErrorSize | None = None
    floor_rel_l2: ErrorSize | None = None
    over_spread: ErrorSize | None = None
    undefined: str = ""
    sample_count: Count | None = None
    sample_p99_rel_l2: ErrorSize | None = None
    sample_worst_rel_l2: ErrorSize | None = None
    sample_undefined: str = ""


class Predictions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How far the probabilities of a classifier lie from the reference's: those of `rows` of logits in `outputs`.

    Probabilities are the softmax of logits, or the output itself where its rows are probabilities or their logarithms
    in the reference. `kl_mean` and `kl_p99` are mean and 99% quantile over rows of the Kullback-Leibler divergence of
    the precision's probabilities from the reference's, in nats (None: undefined, as `kl_undefined` says).
    `median_margin` is the median over rows of the distance between the two largest probabilities in the reference,
    `flipped_margin` the largest of those rows whose decision is another (None: no row's is).
    """

    outputs: list[str]
    rows: Count
    kl_mean: ErrorSize | None = None
    kl_p99: ErrorSize | None = None
    kl_undefined: str = ""
    median_margin: Share | None = None
    flipped_margin: Share | None = None


ASKED_AGREEMENT = 0.99
"""The agreement that further batches are to prove: what advice asks for unless told otherwise."""
ENDS = ("proven", "refuted", "time", "decisions", "batches", "failed")
"""Why further batches ended: the agreement is decided, time was up, no more were to be, there are none, one failed."""


class FurtherDecisions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a classifier decides of further batches, in forward passes: `agreeing` of `decisions` are the reference's.

    `ended` is one of `ENDS`. How many there are is in part a matter of time.
    """

    batches: Count
    agreeing: Count
    decisions: Count
    ended: Annotated[str, one_of(*ENDS)]

    def __post_init__(self) -> None:
        """Raise `ValueError` where more agree than were decided."""
        require_parts(self, ("agreeing", "decisions"))


class ReferenceStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The step that errors are against: on which `device` it ran, and in which `dtype`.

    That is "fp64"; "fp32" (on the case's device) where the fp64 step failed as `error` says; "" where fp32 failed, too.
    `output_norm` is that of all finite elements of its outputs (None: there is none, or it is out of fp64's range),
    `output_shapes` are those of its floating output tensors, `grad_norm` is that of its gradients. `output_sketch` and
    `grad_sketch` are sketches (`ampbench.core.sketch`) of both: with them, what two commits compute in fp64 can be
    compared. `loss` is its loss (None: in inference, or not finite).
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
    """How far the outputs of a step lie from the reference's; None: not defined, as `undefined` says of `rel_l2`.

    Of the `elements`, `reference_nonfinite` are not finite in the reference (`reference_nan` of these NaN), `nonfinite`
    not finite where the reference is (`nan` of these NaN), `unlike` not the same infinity where the reference is
    infinite, and `fp32_nonfinite` not finite in fp32 where the reference is (None: no fp32 beside the reference).
    `rel_l2` is the error of all elements, `floor_rel_l2` that of merely rounding the reference to the precision's
    dtype, `fp32_rel_l2` that of fp32 (tf32 off) on the same device; `cosine` is the cosine similarity.
    `tensors` are the errors one by one, `predictions` those of a classifier's probabilities (None: not measured, or no
    classifier). `argmax_agreeing` of `argmax_decisions` decisions of a classifier are those of the reference, `further`
    are those of further batches (None: its own decided, or nothing was to be decided).
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
    further: FurtherDecisions | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` where more elements are counted than there are."""
        require_parts(
            self,
            ("argmax_agreeing", "argmax_decisions"),
            ("nonfinite", "elements"),
            ("nan", "nonfinite"),
            ("reference_nan", "reference_nonfinite"),
            ("reference_nonfinite", "elements"),
            ("fp32_nonfinite", "elements"),
        )

    @property
    def decided(self) -> tuple[int, int] | None:
        """How many of how many decisions are the reference's, further batches included; None: no classifier."""
        if self.argmax_agreeing is None or self.argmax_decisions is None:
            return None
        more = (self.further.agreeing, self.further.decisions) if self.further else (0, 0)
        return self.argmax_agreeing + more[0], self.argmax_decisions + more[1]

    @property
    def noisiest(self) -> OutputError | None:
        """The tensor whose error is the largest of what its rows differ by; None where none is known.

        Not a classifier's: its decisions and probabilities are judged, and before it is trained its rows may be alike.
        """
        decided = self.predictions.outputs if self.predictions is not None else ()
        known = [each for each in self.tensors or () if each.over_spread is not None and each.name not in decided]
        return max(known, key=lambda each: each.over_spread or 0.0, default=None)

    @property
    def worst(self) -> OutputError | None:
        """The tensor that errs most, the one that is judged; None where nothing is known of them one by one."""
        if self.rel_l2 is None or not self.tensors:
            return None
        defined = [each for each in self.tensors if each.rel_l2 is not None]
        return max(defined, key=lambda each: each.rel_l2 or 0.0, default=None)


class GradientDivergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How far the gradients of a step lie from the reference's; None: not defined, as `undefined` says of `rel_l2`.

    Counts are as in `OutputDivergence`; `flushed` of the `elements` are exactly zero where the reference's are not.
    `worst_parameter` has the largest error of its gradient, `worst_rel_l2`; `tensor_parameter` the largest of those
    that have at least a hundredth of the norm, `tensor_rel_l2`. Over batches, `bias` is what the errors have in common,
    `noise` how far the fp64 gradients of two batches lie apart, by the square root of two; both relative to the norm of
    these (None: there is one batch). In inference there are no `elements`, and nothing else.
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
    worst_rel_l2: ErrorSize | None = None
    tensor_parameter: str | None = None
    tensor_rel_l2: ErrorSize | None = None
    bias: ErrorSize | None = None
    noise: ErrorSize | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` where more elements are counted than there are."""
        require_parts(
            self,
            ("flushed", "elements"),
            ("nonfinite", "elements"),
            ("nan", "nonfinite"),
            ("reference_nan", "reference_nonfinite"),
            ("reference_nonfinite", "elements"),
        )


class Divergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The divergence of one step of a case from the `reference`; None: undefined, or not measured in this phase.

    Errors are Euclidean norms over all floating `output` elements (or the `gradient` of all parameters, or all
    parameters and buffers), relative to the reference's norm; a complex element counts as two. `notes` say what is not
    defined, and why. `loss` is the step's own. `param_rel_l2` speaks of parameters and
    buffers after one optimizer step, relative to them; `param_nonfinite` of these are not finite after it or, if that
    are more, after that of `update`, which tells what such a step changes.
    `skipped_steps` counts optimizer steps that GradScaler skipped after its scale had settled at `scaler_scale`.
    `repeatable` tells whether the same step, run twice, gave the same bits.
    `chance_rel_l2` is how far two fp64 steps lie apart by chance alone (random numbers, state that the network keeps to
    itself), told only where the errors are those of chance: then they say nothing about the precision.
    `recipe` is what trains the case (None: in inference).
    `fp32_products` is as in `Round`. `input_largest` and `target_largest` are the largest finite magnitudes of floating
    inputs and targets, of all batches (None: there are none): of inputs but masks, which hold 0 and one number below,
    and of targets of the size of an output that the precision returns in half. `statistics_stall` is how far running
    statistics, as the precision stores them, stop from those of batches, relative to themselves: half a unit in the
    last place, at least, over the momentum, the most of all (None: there are none with a momentum).
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
    notes: list[str] = []

    @property
    def loss_is_lost(self) -> bool:
        """Whether this is of a training whose loss is not finite."""
        return self.gradient.elements is not None and self.loss is None
