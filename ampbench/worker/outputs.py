"""Errors that one norm over all outputs hides: by output, by sample, and of a classifier's probabilities and decisions.

Values and references are fp64 tensors from `kept_outputs`, in pairs of one shape on one device. A batch may hold too
few decisions: "100% of 32" leaves 91% possible. Forward passes on fresh batches with another seed then add decisions
until the agreement with the reference is proven or refuted.
"""

import math
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS
from ampbench.core.stats import chance_of_at_most
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import ASKED_AGREEMENT, ZERO_REFERENCE, FurtherDecisions, OutputError, Predictions
from ampbench.worker.data import Batch, FreshBatches, Larger, batches_of, bound, tensors_of
from ampbench.worker.distances import (
    Decisions,
    Distance,
    class_dimension,
    classes_of,
    compare,
    compare_each,
    kept_outputs,
    named_outputs,
    outputs_in,
)
from ampbench.worker.machine import Cpu, Device, precision_flags
from ampbench.worker.memory import said_of
from ampbench.worker.step import EqualDraws, TrainingStep, build_step, seed_all, switch_off_dropout
from ampbench.workload import Workload

LOGITS, LOG_PROBABILITIES, PROBABILITIES = "logits", "log-probabilities", "probabilities"
NORMALISED = 1e-4
"""A row whose probabilities sum to one within this is a distribution already: a softmax in fp32 rounds at 1e-6."""
FEWEST_NUMBERS = 4
"""A sample of fewer free numbers gets no relative error: near zero its norm may be anything. The norm of one normal
number is below a tenth of the typical one in 8% of samples, of two in 1%, of four in 0.02%."""
ROWS_AT_ONCE = 1 << 22
"""The logits turned into probabilities at a time: 32 MiB, a few times over."""
ALIKE = 2.0**-24
"""Rows that differ by less than this share of their norm are alike: rounded to fp32, they are the same."""
ZERO = ZERO_REFERENCE.format("output")
ONE_CLASS = "{} has a single class, and decides nothing"


def compared_outputs(workload: Workload, output: Any) -> Any:
    """Return the compared part of a network's `output`: all of it, or the part that `Workload.outputs` selects.

    Raises `WorkloadError` where the selection names an output that the network does not return, or selects no floating
    tensor.
    """
    wanted = workload.outputs
    if wanted is None:
        return output
    if callable(wanted):
        taken = wanted(output)
        if next(outputs_in(taken), None) is None:
            raise WorkloadError(
                f"the workload's outputs(output) returned no floating tensor, but {type(taken).__name__}"
            )
        return taken
    named = dict(named_outputs(output))
    selected: dict[str, torch.Tensor] = {}
    for name in [wanted] if isinstance(wanted, str) else wanted:
        below = {key: named[key] for key in named if key == name or key.startswith((f"{name}.", f"{name}["))}
        if not below:
            has = few(key or "one tensor without a name" for key in named) or "no floating tensor"
            raise WorkloadError(f"the workload's outputs names {name!r}, and the network returns {has}")
        selected |= below
    return selected


def decisions_of(
    workload: Workload, names: Sequence[str], outputs: Sequence[torch.Tensor], targets: Any, loss: Sequence[Decisions]
) -> list[Decisions]:
    """Return the dimensions of `outputs` that hold a classifier's classes, [] for any other network.

    `Workload.classes_dim` decides, else integer `targets` (`class_dimension`), else those seen in its `loss`.
    Raises `WorkloadError` for a `classes_dim` that no output has.
    """
    classes_dim = workload.classes_dim
    if classes_dim is not None:
        by_name = classes_dim if isinstance(classes_dim, Mapping) else {names[0]: classes_dim}
        chosen = []
        for name, dimension in by_name.items():
            if name not in names:
                has = few(key or "one tensor without a name" for key in names)
                raise WorkloadError(f"classes_dim names {name!r}, and the outputs compared are {has}")
            place = names.index(name)
            shape = outputs[place].shape
            if not -len(shape) <= dimension < len(shape):
                called = name or "the output"
                raise WorkloadError(f"classes_dim is {dimension}, and {called} has {len(shape)} dimensions")
            chosen.append(Decisions(place, shape, dimension % len(shape)))
        return chosen
    classes = class_dimension(outputs[0], targets) if outputs else None
    if classes is not None:
        return [Decisions(0, outputs[0].shape, classes)]
    return list({decisions.place: decisions for decisions in loss}.values())


def batch_length(workload: Workload, case: Case) -> int | None:
    """Return the number of samples in the first batch; None where no input has a dimension.

    It is the case's batch size if an input has a dimension of that length, else the length of the first input tensor.
    """
    shapes = [tensor.shape for tensor in tensors_of(batches_of(workload.inputs)[0]) if tensor.ndim]
    if case.batch_size is not None and any(case.batch_size in shape for shape in shapes):
        return case.batch_size
    return shapes[0][0] if shapes else None


class Compared:
    """A group's reference outputs, with everything that the comparisons of all precisions share.

    `decided` are the reference's decisions, `samples` the length of the batch and `targets` the targets of the batch.
    Outputs of one class decide nothing; `notes` report them.
    """

    def __init__(
        self,
        names: Sequence[str],
        references: Sequence[torch.Tensor],
        decided: Sequence[Decisions],
        samples: int | None,
        against: str = "fp64",
        targets: Any = None,
    ):
        self.names, self.references, self.samples, self.against = names, references, samples, against
        self.decided = [decisions for decisions in decided if decisions.shape[decisions.dimension] > 1]
        single = [decisions.place for decisions in decided if decisions.shape[decisions.dimension] == 1]
        self.notes = [ONE_CLASS.format(names[place] or "the output") for place in single]
        by_place = {decisions.place: decisions for decisions in self.decided}
        self._kinds = {place: row_kind(references[place], decisions) for place, decisions in by_place.items()}
        self._centred = {place: by_place[place] for place, kind in self._kinds.items() if kind == LOGITS}
        self._targets = tensors_of(targets)
        self._floors: dict[torch.dtype, tuple[Distance, list[Distance]]] = {}

    def floors(self, rounding: torch.dtype) -> tuple[Distance, list[Distance]]:
        """Return the distances of the references from themselves, rounded to a dtype: of all, and of each output."""
        if rounding not in self._floors:
            rounded = [tensor.to(rounding).double() for tensor in self.references]
            self._floors[rounding] = self.distances(rounded)
        return self._floors[rounding]

    def distances(self, values: Sequence[torch.Tensor]) -> tuple[Distance, list[Distance]]:
        """Return the distance of `values` from the references, of all and of each output; rows of logits are centred.

        Raises `ValueError` for other shapes.
        """
        every, by_output = compare_each(values, self.references, against=self.against)
        for place, decisions in self._centred.items():
            pair = (centred(tensors[place], decisions) for tensors in (values, self.references))
            by_output[place] = compare([next(pair)], [next(pair)], against=self.against)
        return every, by_output

    def errors(
        self,
        values: Sequence[torch.Tensor],
        distances: Sequence[Distance],
        rounding: torch.dtype,
        chances: Sequence[float | None] = (),
    ) -> list[OutputError]:
        """Return the error of each output from its `distances`; `chances` are the errors by chance, where known."""
        _, floors = self.floors(rounding)
        errors = []
        for place, (name, distance) in enumerate(zip(self.names, distances, strict=True)):
            chance = chances[place] if chances else None
            pair = [tensors[place] for tensors in (values, self.references)]
            decisions = self._centred.get(place)
            if decisions is not None:
                pair = [centred(tensor, decisions) for tensor in pair]
            lost = 0 if decisions is None else 1 / decisions.shape[decisions.dimension]
            undefined = distance.undefined or ("" if chance is None else f"chance alone makes it {chance:.1e}")
            p99, worst = (None, None) if undefined else sample_errors(pair[0], pair[1], self.samples, lost)
            errors.append(
                OutputError(
                    name=name,
                    elements=distance.elements,
                    centred=decisions is not None,
                    rel_l2=None if undefined else distance.rel_l2,
                    floor_rel_l2=floors[place].rel_l2,
                    over_spread=over_spread(pair[0], pair[1], self._targets) if undefined in ("", ZERO) else None,
                    undefined=undefined,
                    sample_p99_rel_l2=p99,
                    sample_worst_rel_l2=worst,
                )
            )
        return errors

    def predictions(self, values: Sequence[torch.Tensor]) -> Predictions | None:
        """Return the distance of a classifier's probabilities from the reference's; None for any other network."""
        if not self.decided:
            return None
        parts, gaps = [], [np.empty(0)]
        for decisions in self.decided:
            begin, count = 0, math.prod(decisions.shape) // decisions.shape[decisions.dimension]
            known = (target for target in self._targets if not target.is_floating_point() and target.numel() == count)
            targets = next((target.reshape(-1) for target in known), None)
            for rows in _rows(values[decisions.place], self.references[decisions.place], decisions):
                to_log = self._kinds[decisions.place] == PROBABILITIES
                own, exact = ((side.clamp_min(0).log() if to_log else side).log_softmax(-1) for side in rows)
                parts.append(divergences(own, exact).cpu().numpy())
                if targets is not None:
                    # |ln p - ln r| at the targets; those that are no class, such as -100, are left out
                    labels = targets[begin : begin + len(own)]
                    labelled = (labels >= 0) & (labels < own.shape[-1])
                    at = labels[labelled].to(own.device, torch.int64).unsqueeze(-1)
                    labelled = labelled.to(own.device)
                    apart = own[labelled].gather(-1, at) - exact[labelled].gather(-1, at)
                    gaps.append(apart.abs().squeeze(-1).cpu().numpy())
                begin += len(own)
        kl, gap = summed_up(np.concatenate(parts)), summed_up(np.concatenate(gaps))
        return Predictions(
            outputs=[self.names[decisions.place] for decisions in self.decided],
            rows=sum(map(len, parts)),
            kl_mean=kl[0],
            kl_p99=kl[1],
            gap_mean=gap[0],
            gap_p99=gap[1],
        )

    def near_ties(self, values: Sequence[torch.Tensor], rounding: torch.dtype) -> int:
        """Return the number of decisions that differ from the reference's at margins within rounding to a dtype."""
        pairs = ((decisions, values[decisions.place], self.references[decisions.place]) for decisions in self.decided)
        ties = (is_near_tie(classes_of(own, by), _with_margins(exact, by), rounding) for by, own, exact in pairs)
        return sum(int(tie.sum()) for tie in ties)


def sample_errors(
    value: torch.Tensor, reference: torch.Tensor, samples: int | None, lost: float = 0.0
) -> tuple[float | None, float | None]:
    """Return the 99% quantile and the largest of the errors |x - r| / |r| of an output's samples, its first dimension.

    `lost` is the share of a sample's numbers that are not free (a centred row loses one). Infinite elements are left
    out, and so are samples that are zero in the reference alone. (None, None): no samples, or too few free numbers.
    """
    if not samples or not reference.ndim or len(reference) != samples:
        return None, None
    if reference[0].numel() * (1 - lost) < FEWEST_NUMBERS - 1e-9:
        return None, None
    finite = torch.isfinite(reference)
    x, r = (torch.where(finite, side, 0.0) for side in (value, reference))
    norm = r.flatten(1).norm(dim=1)
    apart = (x - r).flatten(1).norm(dim=1)
    errors = torch.where(apart == 0, 0.0, apart / norm)
    known = errors[torch.isfinite(errors)].cpu().numpy()
    return (float(np.quantile(known, 0.99)), float(known.max())) if len(known) else (None, None)


def over_spread(value: torch.Tensor, reference: torch.Tensor, targets: Sequence[torch.Tensor] = ()) -> float | None:
    """Return the norm of an output's error over the norm of its reference's rows minus their mean.

    Rows are the first dimension. None where there are fewer than two rows or they are `ALIKE`; elements that are not
    finite are left out. A reference of zeros takes the rows of `targets`: the first floating ones of its shape.
    """
    finite = torch.isfinite(reference)
    exact = torch.where(finite, reference, 0.0)
    alike = (target.double() for target in targets if target.is_floating_point() and target.shape == reference.shape)
    rows = exact if bool(exact.any()) else next(alike, exact).to(exact.device)
    if rows.numel() < 2 or len(rows) < 2:
        return None
    spread = float((rows - rows.mean(0)).norm())
    error = float((torch.where(finite, value, 0.0) - exact).norm())
    return error / spread if spread > ALIKE * float(rows.norm()) else None


def centred(tensor: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Return rows of logits minus the mean of their finite elements, which softmax ignores."""
    rows = tensor.reshape(decisions.shape)
    finite = torch.isfinite(rows)
    kept = torch.where(finite, rows, 0.0)
    mean = kept.sum(decisions.dimension, keepdim=True) / finite.sum(decisions.dimension, keepdim=True).clamp_min(1)
    return torch.where(finite, rows - mean, rows).reshape(tensor.shape)


def row_kind(reference: torch.Tensor, decisions: Decisions) -> str:
    """Return the kind of a classifier's rows: `PROBABILITIES`, `LOG_PROBABILITIES` or `LOGITS`."""
    rows = reference.reshape(decisions.shape)
    if bool(((rows >= 0) & (rows <= 1 + NORMALISED)).all()):
        sums = rows.sum(decisions.dimension)
        return PROBABILITIES if bool(((sums - 1).abs() <= NORMALISED).all()) else LOGITS
    if bool((rows <= NORMALISED).all()) and bool((rows.logsumexp(decisions.dimension).abs() <= NORMALISED).all()):
        return LOG_PROBABILITIES
    return LOGITS


def divergences(logs: torch.Tensor, reference_logs: torch.Tensor) -> torch.Tensor:
    """Return the Kullback-Leibler divergence KL(r‖p) of each row in nats; infinite where p is 0 and r is not.

    The sum is of r·(d + e⁻ᵈ - 1), d = ln r - ln p: no part is negative, so near-equal rows do not cancel.
    """
    r = reference_logs.exp()
    apart = reference_logs - logs
    parts = torch.where(r > 0, r * (apart + torch.expm1(-apart)), logs.exp())
    return parts.clamp_min(0).sum(-1)


def summed_up(values: "np.ndarray[Any, Any]") -> tuple[float | None, float | None]:
    """Return the mean and the 99% quantile of values; None without any, or where one is not finite."""
    known = len(values) > 0 and bool(np.isfinite(values).all())
    return (float(values.mean()), float(np.quantile(values, 0.99))) if known else (None, None)


def _rows(value: torch.Tensor, reference: torch.Tensor, by: Decisions) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a classifier's value and reference as rows over classes, some at a time."""
    pair = [tensor.reshape(by.shape).movedim(by.dimension, -1) for tensor in (value, reference)]
    flat = [rows.reshape(-1, rows.shape[-1]) for rows in pair]
    step = max(1, ROWS_AT_ONCE // flat[0].shape[-1])
    for start in range(0, len(flat[0]), step):
        yield flat[0][start : start + step], flat[1][start : start + step]


DOUBT = 0.05
"""The one-sided level at which an agreement is proven or refuted."""
MOST_DECISIONS = 2000
"""An agreement that is undecided after this many decisions stays undecided."""
MOST_BATCHES = 400
SHARE = 0.15
"""Further batches of a case, and of its reference, may each take this share of the case's step time."""
FORWARD_SHARE = 0.1
"""A forward pass takes about this share of a case's pass, which builds the network, runs the step and compares."""
LEAST_SECONDS = 0.1
"""Further batches may always take this long."""

Choice = tuple[torch.Tensor, torch.Tensor]
"""The classes that an output of the reference chooses, and their margins."""


class Agreement:
    """The decisions of a group's reference on further batches, computed once for all precisions.

    The reference runs on `where`, in fp64, or in fp32 where fp64 failed; `draws`: it draws random numbers.
    """

    def __init__(
        self, workload: Workload, compared: Compared, where: Device, dtype: str, draws: bool, larger: Larger | None
    ):
        self._workload, self._compared, self._where, self._draws = workload, compared, where, draws
        self._precision = FP64 if dtype == FP64.name else PRECISIONS[BASELINE]
        self._fresh = FreshBatches(workload, compared.samples, larger=larger)
        self._truth: list[list[Choice]] = []

    def measure(
        self, case: Case, device: Device, agreeing: int, decisions: int, seconds: float, notes: list[str]
    ) -> FurtherDecisions:
        """Return the decisions of `case` on further batches, after `agreeing` of its first `decisions` agreed.

        Batches end once the agreement is proven or refuted, or after the time that a step of `seconds` (by `spent`)
        allows. None begin where that time has room for less than a third of the decisions needed. `notes` get the
        reason of a failure.
        """
        room = max(LEAST_SECONDS, SHARE * seconds)
        deadline = spent(device) + room
        batches, same, further, ties = 0, 0, 0, 0
        rounding = getattr(torch, PRECISIONS[case.precision].rounding)
        lacking = (needed(agreeing, decisions) - decisions) / max(decisions, 1)
        going = lacking * FORWARD_SHARE * seconds <= 3 * room
        try:
            while going and decisions + further < MOST_DECISIONS and batches < MOST_BATCHES:
                wanted = needed(agreeing + same, decisions + further) - decisions - further
                count = min(batches + math.ceil(wanted / max(decisions, 1)), MOST_BATCHES)
                truth, drawn = self._known(case, count, room)
                if len(truth) <= batches:
                    break
                with closing(self._classes(case, device, drawn[batches : len(truth)])) as steps:
                    for decided, exact in zip(steps, truth[batches:], strict=False):
                        batches += 1
                        pairs = list(zip(decided, exact, strict=True))
                        same += sum(int(((own == true[0]) & (true[0] >= 0)).sum()) for own, true in pairs)
                        further += sum(int((true[0] >= 0).sum()) for _, true in pairs)
                        ties += sum(int(is_near_tie(own, true, rounding).sum()) for own, true in pairs)
                        going = not state(agreeing + same, decisions + further) and spent(device) <= deadline
                        if not going:
                            break
                going = going and batches >= len(truth)  # else later outputs have other shapes
        except Exception as error:  # noqa: BLE001 - the case itself ran; only its further batches failed
            notes.append(f"further batches failed: {said_of(error)}")
        return FurtherDecisions(agreeing=same, decisions=further, near_ties=ties)

    def _known(self, case: Case, count: int, room: float) -> tuple[list[list[Choice]], Sequence[Batch]]:
        """Return the reference's decisions on up to `count` batches, and the batches drawn."""
        drawn = self._fresh.first(count)
        if len(self._truth) < len(drawn):
            deadline = spent(self._where) + room
            with closing(self._classes(case, self._where, drawn[len(self._truth) :], reference=True)) as steps:
                for classes in steps:
                    self._truth.append(classes)
                    if spent(self._where) > deadline:
                        break
        return self._truth[:count], drawn

    def _classes(
        self, case: Case, device: Device, batches: Sequence[Batch], *, reference: bool = False
    ) -> Generator[list[Any]]:
        """Yield the decisions on each batch (`Choice` of the reference); ends before outputs of other shapes."""
        made = _with_margins if reference else classes_of
        precision = self._precision if reference else None
        with precision_flags(precision or PRECISIONS[case.precision]):
            step = build_step(self._workload, case, device, precision=precision)
            training = isinstance(step, TrainingStep)
            if training:
                switch_off_dropout(step.module, [])
            for turn, (inputs, targets) in enumerate(batches):
                seed_all(turn)
                batch, _ = step.data.placed(inputs, targets)
                region = step.network.without_gradients() if training else step.mode()
                with region, EqualDraws() if self._draws else nullcontext(), step.network.autocast():
                    output = bound(step.network.forward, batch)()
                outputs = kept_outputs(compared_outputs(self._workload, output), Cpu())
                if [tensor.shape for tensor in outputs] != [tensor.shape for tensor in self._compared.references]:
                    break
                yield [made(outputs[decisions.place], decisions) for decisions in self._compared.decided]
            step.let_go()


def spent(device: Device) -> float:
    """Return a clock's seconds: on a CPU, this process's CPU time over its threads, free of other load; else time."""
    return process_time() / torch.get_num_threads() if device.type == "cpu" else perf_counter()


def state(agreeing: int, decisions: int) -> str:
    """Return "proven" or "refuted" where the decisions settle whether 99% agree, one-sided at 95%; else "".

    The bounds are those of `stats.share_bound`: proven where a true 1% of differences would give this few with a chance
    of 5% at most; refuted where it would give this many with less than 5%.
    """
    differing = decisions - agreeing
    if chance_of_at_most(differing, decisions, 1 - ASKED_AGREEMENT) <= DOUBT:
        return "proven"
    return "refuted" if 1 - chance_of_at_most(differing - 1, decisions, 1 - ASKED_AGREEMENT) < DOUBT else ""


def needed(agreeing: int, decisions: int) -> int:
    """Return the number of decisions that prove the agreement if all further ones agree, `MOST_DECISIONS` at most."""
    differing, counts = decisions - agreeing, range(decisions, MOST_DECISIONS)
    return decisions + bisect_left(counts, True, key=lambda count: state(count - differing, count) == "proven")


def _with_margins(reference: torch.Tensor, decisions: Decisions) -> Choice:
    """Return the classes, and the difference of the two largest ones, relative to the sum of their magnitudes."""
    first, second = reference.reshape(decisions.shape).topk(2, decisions.dimension).values.unbind(decisions.dimension)
    return classes_of(reference, decisions), (first - second) / (first.abs() + second.abs())


def is_near_tie(own: torch.Tensor, exact: Choice, rounding: torch.dtype) -> torch.Tensor:
    """Return where decisions differ at a margin of the reference that rounding it to a dtype may close."""
    classes, margin = exact
    return (own != classes) & (own >= 0) & (classes >= 0) & ~(margin > torch.finfo(rounding).eps / 2)
