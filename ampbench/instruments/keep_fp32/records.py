"""What a search for the modules to keep in fp32 stores: what there was to choose from, each trial, what sets cost."""

from enum import StrEnum
from typing import Annotated

import msgspec

from ampbench.records.bounds import Count, ErrorSize, KeptShare, Seconds, Share, StepSeconds, one_of
from ampbench.records.measured import Fitness
from ampbench.records.ranges import ModuleError


class Objective(StrEnum):
    """What keeping modules in fp32 should cost little of."""

    SPEED = "speed"
    MEMORY = "memory"


SPEED, MEMORY = OBJECTIVES = tuple(each.value for each in Objective)

MAX_TRIALS = 60
"""So many sets are tried unless another number is asked for."""


class Unit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What is kept in fp32 or not as one: a module in which no other runs, or several that share parameters.

    `modules` are their paths, `kind` the class of the first. `weight_bytes` are those of its parameters and buffers in
    fp32, `output_bytes` those of all that it returns in a step in fp32, `seconds` what its forward calls take in fp32.
    """

    modules: list[str]
    kind: str
    weight_bytes: Count = 0
    output_bytes: Count = 0
    seconds: Seconds = 0.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a search is to find: the budget, `objective` and `seed` as in `KeepSearch`, and how much it may do.

    `max_gradient_error` bounds what trains, and `min_update_kept` (None: nothing) what trains with weights stored in
    half. No more than `max_trials` sets are tried, those that are only weighed
    included; what sets cost is measured for about `seconds`.
    """

    max_error: ErrorSize
    max_gradient_error: ErrorSize
    objective: Annotated[str, one_of(*OBJECTIVES)] = SPEED
    seed: int = 0
    max_trials: Count = MAX_TRIALS
    seconds: Seconds = 20.0
    min_update_kept: Share | None = None


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The modules of a case among which is chosen, in the order of running.

    `errors` are the own errors of its modules in the case's precision, on exact inputs. `containers` are the paths of
    the modules that hold others that run ("" is the network), outermost first: one whose units are all kept is kept
    whole. `wanted` is what is searched for among them (None: as a worker gives it). The digests are those of the
    weights and inputs with which the modules were seen ("": unknown).
    """

    case_id: str
    units: list[Unit]
    containers: list[str] = []
    errors: list[ModuleError] = []
    wanted: Wanted | None = None
    weights_digest: str = ""
    inputs_digest: str = ""
    notes: list[str] = []


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One step of a case with the modules `kept` in fp32, against the reference; all as in `Divergence`.

    `output_rel_l2` is that of the output that errs most. An error is None where it is undefined because a value is not
    finite (`nonfinite` counts those of outputs and gradients), or because the step raised `error`, its first line.
    `number` counts a case's trials from 0. `batch` is 0 for the workload's first batch, from 1 on for batches that the
    search does not see. `update_kept` is that of `Update`, measured where it is bounded; `update_nonfinite` elements of
    the parameters are not finite after such a step, and `update_undefined` says why nothing is known of it.
    """

    case_id: str
    number: Count = 0
    kept: list[str] = []
    output_rel_l2: ErrorSize | None = None
    grad_rel_l2: ErrorSize | None = None
    nonfinite: Count = 0
    reference_dtype: str = "fp64"
    reference_error: str = ""
    error: str = ""
    batch: Count = 0
    update_kept: KeptShare | None = None
    update_nonfinite: Count = 0
    update_undefined: str = ""


class Weighed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The modules `kept` in fp32, measured: `samples[b]` are the seconds per step of build `b`.

    Sets that are weighed together are built and timed in turns, so that build `b` of one stands beside build `b` of
    another. `peak_bytes` is as in `MemoryPass` (None: unavailable).
    """

    kept: list[str] = []
    samples: list[list[StepSeconds]] = []
    peak_bytes: Count | None = None


class Weighing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What sets of kept modules cost, measured together. `memory_source` is as in `MemoryPass`."""

    case_id: str
    weighed: list[Weighed] = []
    memory_source: str | None = None
    fitness: Fitness = Fitness()
    notes: list[str] = []


class KeepSearch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How a search ended: which modules to keep, `found` (None: no set meets the budget), and what sets cost.

    The budget are `max_error` on outputs and, in training, `max_gradient_error` on gradients, relative L2 errors, and
    `min_update_kept`, the least share of the intended update that arrives (None: not bounded).
    `found` names modules as `keep_fp32` takes them; [""] is the whole network, [] none. `units` are how many units of
    the space that keeps. `smallest`: no smaller set meets the budget, given that keeping more never errs more; else
    none smaller was found. `trials` is how many sets were tried, those of an interrupted session and those that were
    only weighed included. `objective` is one of `OBJECTIVES`. `confirmed` are trials of what was found on fresh
    batches, `refuted` the worst on these of each set that met the budget on the first batch and missed it there.
    `weighing` goes from no module kept to all (None: not measured).
    """

    case_id: str
    max_error: ErrorSize
    max_gradient_error: ErrorSize | None = None
    min_update_kept: Share | None = None
    objective: Annotated[str, one_of(*OBJECTIVES)]
    seed: int
    found: list[str] | None
    units: Count = 0
    smallest: bool = False
    trials: Count = 0
    confirmed: list[Trial] = []
    refuted: list[Trial] = []
    weighing: Weighing | None = None
    notes: list[str] = []


class TrialAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a step with the modules `kept` in fp32 errs on the `batch` of this number, as in `Trial`.

    With `updates`, what arrives of an optimizer's step, too. A fresh batch that there is not is a skip.
    """

    kept: list[str] = []
    batch: Count = 0
    updates: bool = False


class WeighingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a step with each set of `kept` modules costs, measured for about `seconds`."""

    kept: list[list[str]]
    seconds: Seconds
