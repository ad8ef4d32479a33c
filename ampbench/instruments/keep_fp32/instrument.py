"""What `ampbench explain keep-fp32` asks, and of which cases; `searching` does it."""

from functools import partial
from types import ModuleType

from ampbench.core.budget import LEAST_KEPT, LIMITS, Budget
from ampbench.core.precisions import LOW
from ampbench.errors import UsageError
from ampbench.instruments.keep_fp32.records import (
    MAX_TRIALS,
    Objective,
    SearchSpace,
    Trial,
    TrialAsked,
    Wanted,
    Weighing,
    WeighingAsked,
)
from ampbench.records.kinds import KEEP_FP32
from ampbench.records.wire import Nothing, Task
from ampbench.studies.study import AUTOCAST_HELP, INFERENCE_HELP, SCALER_HELP, Given, Instrument, Option, Selects

SPACE_TASK = Task("space", Nothing, SearchSpace, "ampbench.instruments.keep_fp32.measure:do_space")
TRIAL_TASK = Task("trial", TrialAsked, Trial, "ampbench.instruments.keep_fp32.measure:do_trial")
WEIGHING_TASK = Task("weighing", WeighingAsked, Weighing, "ampbench.instruments.keep_fp32.measure:do_weighing")

MOST_ERROR = 1e150
"""No run file has a larger one (`store.lines`): its square must be finite."""
BOUNDED = {name: LIMITS[name] for name in ("output_rel_l2", "grad_rel_l2")}
"""The limits of a budget that a search keeps to."""


def _searching() -> ModuleType:
    """Return the module that searches: it imports NumPy, which no help waits for."""
    from ampbench.instruments.keep_fp32 import searching

    return searching


def _wanted(given: Given) -> Wanted:
    """Return what a search is to find; `UsageError` for a limit that cannot be one, or bounds nothing here."""
    values = {row.name: given.values[row.name] for row in INSTRUMENT.options}
    limits = {name: values[each.parameter] for name, each in BOUNDED.items()}
    Budget(**limits)  # refuses what is no limit
    for name, limit in limits.items():
        if limit > MOST_ERROR:
            flag = BOUNDED[name].flag
            raise UsageError(f"{flag} is a finite relative error, of no more than {MOST_ERROR:g}, not {limit:g}")
    if "max_gradient_error" in given.typed and "training" not in given.selection.phases:
        raise UsageError("--max-gradient-error bounds the gradients of training: add --phase training, or leave it out")
    return Wanted(**values | {"objective": values["objective"].value}, seed=given.values["seed"])


INSTRUMENT: Instrument[Wanted] = Instrument(
    kind=KEEP_FP32,
    doing="searching",
    help="""\
Search the smallest set of modules to keep in fp32 so that the errors meet a budget, and measure what it costs.

    Without --phase, the step is one of inference. Each trial is a step with some modules kept, against fp64. Ends with
    the sets between none and all kept, measured in turns, and with the code to paste. Every trial is stored: an
    interrupted search goes on with --resume.

    \b
    Examples:
      ampbench explain keep-fp32 model.py:make --max-error 2e-3
      ampbench explain keep-fp32 vit_b_16 --phase training --max-gradient-error 1e-2
      ampbench explain keep-fp32 resnet18 --precision fp16_pure --objective memory --max-trials 30
      ampbench explain keep-fp32 --resume 1f9a3c        an interrupted search, by its id
    """,
    options=(
        *(
            Option(name=each.parameter, default=getattr(Budget, name), metavar=each.metavar, help=each.help)
            for name, each in BOUNDED.items()
        ),
        Option(
            name="min_update_kept",
            default=LEAST_KEPT,
            metavar="S",
            least=0.0,
            most=1.0,
            help="Least share of an update that arrives, in training in pure half.",
        ),
        Option(
            name="objective",
            default=Objective.SPEED,
            help="What decides between sets of one size: step time or memory.",
        ),
        Option(
            name="max_trials",
            default=MAX_TRIALS,
            metavar="N",
            least=1,
            most=100_000,
            help="So many sets of modules are tried at most, those that are only weighed included.",
        ),
    ),
    made=_wanted,
    selects=Selects(
        precision=AUTOCAST_HELP,
        phase=INFERENCE_HELP,
        scaler=SCALER_HELP,
        question="search the modules",
        phases=("inference",),
        among=LOW,
        otherwise="keep-fp32 asks what a low precision must leave in fp32, and {name} is none",
    ),
    same=lambda *told: _searching().check_same_networks(*told),
    work=lambda session: partial(_searching().search_piece, session),
    progress=lambda: _searching().TrialsSeen().said,
)
