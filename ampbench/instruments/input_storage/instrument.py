"""The study of stored inputs: cases with autocast, each fed inputs in fp32 and in half by a worker of its own."""

from msgspec import structs

from ampbench.core.precisions import AUTOCAST
from ampbench.drive.pieces import plan_default_autocast
from ampbench.drive.planning import WITHOUT_LOSS, PlannedCase
from ampbench.drive.servers import Channel
from ampbench.instruments.input_storage.records import StorageAsked, StoragePass
from ampbench.instruments.instrument import AUTOCAST_HELP, SCALER_HELP, Instrument, Option, Selects
from ampbench.records.case import PHASES, Environment
from ampbench.records.kinds import INPUT_STORAGE
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task

HELP = """\
Feed each network inputs in fp32 and inputs stored in half: what is saved, and whether anything is lost.

Tells apart an input whose first op accepts half (a cast is saved, the results are the same to the last bit) from
one whose op autocast runs in fp32 or promotes (information is lost). Workloads of token ids are skipped.

\b
Examples:
  ampbench study input-storage model.py:make
  ampbench study input-storage mlp transformer_encoder --phase inference
  ampbench study input-storage resnet18 --precision bf16_autocast --precision fp16_autocast
  ampbench study input-storage --resume 1f9a3c       an interrupted study, by its id
"""
TASK = Task(INPUT_STORAGE, StorageAsked, StoragePass, "ampbench.instruments.input_storage.measure:do_storage")


def _plan(
    selection: Selection, _: StorageAsked, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    """Return the cases in both phases where none is named, without those that have no loss to train by."""
    asked = structs.replace(selection, phases=selection.phases or list(PHASES))
    found = plan_default_autocast(asked, environment, channel, settings)
    return found if selection.phases else [planned for planned in found if planned.skip not in WITHOUT_LOSS] or found


INSTRUMENT: Instrument[StorageAsked] = Instrument(
    kind=INPUT_STORAGE,
    help=HELP,
    doing="comparing",
    lists_all=False,
    task=TASK,
    options=(Option(name="seconds", default="4", seconds=True, help="Timing per case"),),
    selects=Selects(
        question="study the inputs",
        precision=AUTOCAST_HELP,
        phase="inference or training. Default: both, if there is a loss.",
        scaler=SCALER_HELP,
        among=AUTOCAST,
        otherwise="input-storage asks what autocast does with inputs in half, and {name} has none",
    ),
    plan=_plan,
)
