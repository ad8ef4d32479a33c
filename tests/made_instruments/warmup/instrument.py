"""The study of warm-up: the first steps of each case, timed one by one in a worker of its own."""

from ampbench.instruments.warmup.records import WarmUp, WarmUpAsked
from ampbench.records.wire import Task
from ampbench.studies.study import AUTOCAST_HELP, INFERENCE_HELP, SCALER_HELP, Instrument, Option, Selects

HELP = """\
Time the first steps of a case one by one, and say after how many the step time settles.

\b
Examples:
  ampbench study warmup model.py:make
  ampbench study warmup mlp --steps 40 --tolerance 0.1
"""
TASK = Task("warmup", WarmUpAsked, WarmUp, "ampbench.instruments.warmup.measure:do_warmup")

INSTRUMENT: Instrument[WarmUpAsked] = Instrument(
    kind="warmup",
    help=HELP,
    doing="warming up",
    task=TASK,
    options=(
        Option(name="steps", default=20, metavar="N", least=2, most=1000, help="Steps of each case."),
        Option(
            name="tolerance", default=0.2, metavar="SHARE", least=0, most=1, help="A settled step is so much slower."
        ),
    ),
    selects=Selects(
        question="study the warm-up",
        precision=AUTOCAST_HELP,
        phase=INFERENCE_HELP,
        scaler=SCALER_HELP,
        phases=("inference",),
    ),
)
