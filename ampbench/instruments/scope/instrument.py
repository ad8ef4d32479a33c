"""The study of autocast's scope: training cases, each in every scope by a worker of its own."""

from ampbench.core.precisions import AUTOCAST
from ampbench.instruments.scope.records import FEWEST_STEPS, ScopeAsked, ScopePass
from ampbench.records.kinds import SCOPE
from ampbench.records.wire import Task
from ampbench.studies.study import AUTOCAST_HELP, SCALER_HELP, Instrument, Option, Selects

HELP = """\
Train with autocast around forward, forward and loss, backward too, or the whole loop, and say what each costs.

In each scope the same steps run, from the same weights: casts and memory per step, time in turns, dtypes, errors
against fp64, losses. PyTorch recommends forward and loss. The run is stored: ampbench show RUN prints it again.

\b
Examples:
  ampbench study scope model.py:make
  ampbench study scope mlp transformer_encoder --precision bf16_autocast --steps 16 --seconds 1m
  ampbench study scope --resume 1f9a3c        an interrupted study, by its id
"""
TASK = Task(SCOPE, ScopeAsked, ScopePass, "ampbench.instruments.scope.measure:do_scopes")


INSTRUMENT: Instrument[ScopeAsked] = Instrument(
    kind=SCOPE,
    help=HELP,
    doing="studying",
    task=TASK,
    options=(
        Option(
            name="steps", default=8, metavar="N", least=FEWEST_STEPS, most=1000, help="Steps of training in each scope."
        ),
        Option(name="seconds", default="20", seconds=True, help="Timing per case"),
    ),
    selects=Selects(
        question="study the scope of autocast",
        precision=AUTOCAST_HELP,
        scaler=SCALER_HELP,
        phases=("training",),
        recipes=True,
        among=AUTOCAST,
        otherwise="{name} enters no autocast, so that it has no scope",
    ),
)
