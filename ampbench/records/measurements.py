"""What one round, one memory pass and one failure leave behind: raw numbers, nothing derived from them.

The exception is a reading, which is all that some other programs keep.
"""

from dataclasses import dataclass, field

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
STAGES = (
    "memory", "divergence", "round", "casts", "rules", "ranges", "origin", "space", "trial", "weighing",
    "convergence", "scaler", "scope", "input-storage", "ceilings",
)  # fmt: skip
"""Where: the kinds of requests (`records.requests.Request`)."""
MEMORY_SOURCES = ("allocator", "profiler")
"""Who counts memory: the accelerator's own count, and the CPU's allocation record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """How quiet the machine was during a round; None where the machine does not tell.

    `steal_share` is the share of CPU time the hypervisor gave to others (0-1), `other_share` the share of this
    machine's CPU time that other processes used, `load` the kernel's load average over the last minute,
    `involuntary_switches` how often the kernel took the processor away, `frequency_hz` the CPU's clock,
    `temperature_celsius` and `accelerator_clock_hz` the accelerator's.
    """

    steal_share: float | None = None
    other_share: float | None = None
    load: float | None = None
    involuntary_switches: int | None = None
    frequency_hz: float | None = None
    temperature_celsius: float | None = None
    accelerator_clock_hz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
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
    """

    case_id: str
    round: int
    server: int
    control: bool = False
    confirmation: bool = False
    samples: list[list[float]]
    steps_per_sample: list[int]
    warmup_steps: list[int]
    items_per_step: float
    compile_seconds: float | None = None
    weights_digest: str
    scaler_scale: float | None = None
    skipped_steps: int | None = None
    param_nonfinite: int | None = None
    changed_in_place: list[str] = field(default_factory=list)
    comes_compiled: bool = False
    fp32_products: dict[str, str] | None = None
    cpu_samples: list[list[float]] | None = None
    rss_peak_bytes: int | None = None
    fitness: Fitness = field(default_factory=Fitness)
    seconds: float
    finished_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPass:
    """The peak of one step's memory, in bytes, from a separate, untimed pass.

    `source` is one of `MEMORY_SOURCES`. `peak_bytes` holds parameters, buffers, inputs, gradients, optimizer state and
    everything else alive at the peak; the parts are what is known by name after the step (None: this phase has none),
    `rss_bytes` the process' resident set, which holds the interpreter and torch itself too and is never compared with
    the other numbers. `flops` are the algorithmic FLOPs of the step (a multiply-add is two) by the dtype of what is
    multiplied ("bf16"), counted in the same pass (None: not counted). `faults` are the page faults that a step pays on
    a CPU in glibc's plain heap, whichever times are measured in.
    """

    case_id: str
    source: str
    peak_bytes: int
    parameter_bytes: int
    buffer_bytes: int
    input_bytes: int
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    rss_bytes: int | None = None
    flops: dict[str, int] | None = None
    faults: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A case that could not be measured: where it broke (`stage`, one of `STAGES`), by what (`cause`, one of `CAUSES`).

    `message` is what it said, `frames` are its last ones.
    """

    case_id: str
    stage: str
    cause: str
    message: str
    frames: list[str] = field(default_factory=list)

    @property
    def final(self) -> bool:
        """Whether the case itself failed; what was killed by someone else is tried again when the run is resumed."""
        return self.cause != KILLED

    @property
    def said(self) -> str:
        """Why it failed: the message of an exception, which names its class; else the cause before what it said."""
        known = [self.cause] if self.cause != "exception" or not self.message else []
        return ": ".join([*known, *([self.message] if self.message else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A case that was not measured, with the reason: unsupported here, no loss given, not reached in time."""

    case_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A number that another program kept without the samples behind it, in an imported run.

    `metric` is a column of `metrics.METRICS`, `value` is in its unit. It fills the column where the run has no raw
    entry to derive it from.
    """

    case_id: str
    metric: str
    value: float
