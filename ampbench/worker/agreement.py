"""More decisions of a classifier, by forward passes alone, until its agreement with the reference is proven or refuted.

"100% of 32" leaves 91% possible. The batches are the workload's fresh ones, without those of another seed.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext
from time import perf_counter, process_time

import torch

from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.divergences import ASKED_AGREEMENT, FurtherDecisions
from ampbench.stats import share_bound
from ampbench.worker.devices import Cpu, Device
from ampbench.worker.distances import Decisions, kept_outputs
from ampbench.worker.flags import precision_flags
from ampbench.worker.fresh import Batch, FreshBatches, Larger
from ampbench.worker.outputs import Compared, compared_outputs
from ampbench.worker.seeded import EqualDraws, seed_all, switch_off_dropout
from ampbench.worker.step import Step
from ampbench.workload import Workload

MOST_DECISIONS = 2000
"""After so many an agreement so near to what is asked for stays undecided."""
MOST_BATCHES = 400
SHARE = 0.15
"""Further batches of a case, and of its reference, may each take this share of the time that its step has taken."""
FORWARD_SHARE = 0.1
"""A forward pass takes about this share of a case's pass, which builds the network, runs the step and compares."""
LEAST_SECONDS = 0.1
"""They may take as long as this whatever that is."""

Classes = list[torch.Tensor]
"""What an output decides, place by place, on the CPU; -1 where it is NaN."""


class Agreement:
    """The decisions of a group's reference on further batches, found once for all precisions that ask.

    The reference runs on `where`, in fp64 or, where it is that of fp32, in fp32; `draws`: it draws random numbers.
    """

    def __init__(
        self, workload: Workload, compared: Compared, where: Device, dtype: str, draws: bool, larger: Larger | None
    ):
        self._workload, self._compared, self._where, self._draws = workload, compared, where, draws
        self._reference = dtype == "fp64"
        self._fresh = FreshBatches(workload, compared.samples, larger=larger)
        self._truth: list[Classes] = []

    def measure(self, case: Case, device: Device, agreeing: int, decisions: int, seconds: float) -> FurtherDecisions:
        """Return what further batches of `case` decide, where `agreeing` of its `decisions` so far are the reference's.

        They end as soon as the agreement is proven or refuted, or after the time that a step of `seconds` (by `spent`)
        gives them; where a third of what is needed has no room in it, they do not begin.
        """
        room = max(LEAST_SECONDS, SHARE * seconds)
        deadline = spent(device) + room
        batches, same, made = 0, 0, 0
        ended = state(agreeing, decisions)
        lacking = (needed(agreeing, decisions) - decisions) / max(decisions, 1)
        if not ended and lacking * FORWARD_SHARE * seconds > 3 * room:
            ended = "time"
        try:
            while not ended:
                if decisions + made >= MOST_DECISIONS or batches >= MOST_BATCHES:
                    ended = "decisions"
                    break
                wanted = needed(agreeing + same, decisions + made) - decisions - made
                count = min(batches + math.ceil(wanted / max(decisions, 1)), MOST_BATCHES)
                truth, given = self._known(case, count, room)
                if len(truth) <= batches:
                    ended = "batches" if len(given) <= batches else "time"
                    break
                with closing(self._classes(case, device, given[batches : len(truth)])) as steps:
                    for own, exact in zip(steps, truth[batches:], strict=False):
                        batches += 1
                        pairs = list(zip(own, exact, strict=True))
                        same += sum(int(((one == other) & (other >= 0)).sum()) for one, other in pairs)
                        made += sum(int((other >= 0).sum()) for _, other in pairs)
                        ended = state(agreeing + same, decisions + made)
                        ended = ended or ("time" if spent(device) > deadline else "")
                        if ended:
                            break
                if not ended and batches < len(truth):
                    ended = "batches"
        except Exception:  # noqa: BLE001 - what a network makes of further batches is no fault of its case
            ended = "failed"
        return FurtherDecisions(batches=batches, agreeing=same, decisions=made, ended=ended)

    def _known(self, case: Case, count: int, room: float) -> tuple[list[Classes], Sequence[Batch]]:
        """Return the reference's decisions on the first `count` batches, or on fewer, and the batches there are."""
        given = self._fresh.first(count)
        if len(self._truth) < len(given):
            deadline = spent(self._where) + room
            with closing(self._classes(case, self._where, given[len(self._truth) :], reference=True)) as steps:
                for found in steps:
                    self._truth.append(found)
                    if spent(self._where) > deadline:
                        break
                else:  # what follows has outputs of other shapes
                    given = given[: len(self._truth)]
        return self._truth[:count], given

    def _classes(
        self, case: Case, device: Device, batches: Sequence[Batch], *, reference: bool = False
    ) -> Generator[Classes]:
        """Yield what the outputs of batches decide; ends before one whose outputs have other shapes."""
        precision = BASELINE if reference and not self._reference else None
        exact = reference and self._reference
        flags = None if exact else PRECISIONS[precision or case.precision]
        with precision_flags(flags):
            step = Step(self._workload, case, device, reference=exact, precision=precision)
            if step.training:
                switch_off_dropout(step.module, [])
            for turn, (inputs, targets) in enumerate(batches):
                seed_all(turn)
                batch, _ = step.placed(inputs, targets)
                region = torch.no_grad() if step.training and not step.by_inputs else step.mode()
                with region, EqualDraws() if self._draws else nullcontext():
                    output = step.forward(batch)
                outputs = kept_outputs(compared_outputs(self._workload, output), Cpu())
                if [one.shape for one in outputs] != [one.shape for one in self._compared.references]:
                    break
                yield [_decided(outputs[made.place], made) for made in self._compared.decided]
            step.let_go()


def spent(device: Device) -> float:
    """Return a time in seconds: on a CPU that which each thread of this process has computed, whatever others do."""
    return process_time() / torch.get_num_threads() if device.type == "cpu" else perf_counter()


def state(agreeing: int, decisions: int) -> str:
    """Return "proven" or "refuted" where so many decisions decide whether 99% agree, one-sided at 95%; else ""."""
    if float(share_bound(agreeing, decisions)) >= ASKED_AGREEMENT:
        return "proven"
    return "refuted" if float(share_bound(decisions - agreeing, decisions)) > 1 - ASKED_AGREEMENT else ""


def needed(agreeing: int, decisions: int) -> int:
    """Return how many decisions would prove the agreement if all further ones agreed, `MOST_DECISIONS` at most."""
    differing = decisions - agreeing
    low, high = decisions, MOST_DECISIONS
    while low < high:
        middle = (low + high) // 2
        if float(share_bound(middle - differing, middle)) >= ASKED_AGREEMENT:
            high = middle
        else:
            low = middle + 1
    return high


def _decided(output: torch.Tensor, made: Decisions) -> torch.Tensor:
    rows = output.reshape(made.shape)
    return torch.where(rows.isnan().any(made.dimension), -1, rows.argmax(made.dimension))
