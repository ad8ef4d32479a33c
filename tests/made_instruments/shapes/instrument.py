"""The explanation of shapes: a worker of its own watches a step of each case."""

from ampbench.instruments.shapes.records import ShapesPass
from ampbench.records.wire import Nothing, Task
from ampbench.studies.study import AUTOCAST_HELP, INFERENCE_HELP, Instrument, Selects

HELP = """\
Watch a step: the shape, the dtype and the bytes of what each module gives.

\b
Examples:
  ampbench explain shapes model.py:make
  ampbench explain shapes mlp --all
"""
TASK = Task("shapes", Nothing, ShapesPass, "ampbench.instruments.shapes.measure:do_shapes", timed=False, flags=True)

INSTRUMENT: Instrument[Nothing] = Instrument(
    kind="shapes",
    help=HELP,
    doing="watching",
    task=TASK,
    selects=Selects(
        question="explain the shapes",
        precision=AUTOCAST_HELP,
        phase=INFERENCE_HELP,
        phases=("inference",),
    ),
)
