"""What one norm over all outputs hides: errors by output and by sample, a classifier's probabilities and decisions.

Values and references are fp64 tensors as `kept_outputs` gives them, pairs of one shape on one device. Where the
decisions of a batch are too few ("100% of 32" leaves 91% possible), forward passes alone make more, on the workload's
fresh batches but those of another seed, until the agreement with the reference is proven or refuted.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS
from ampbench.core.stats import chance_of_at_most
from ampbench.core.units import counted
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import ASKED_AGREEMENT, ZERO_REFERENCE, FurtherDecisions, OutputError, Predictions
from ampbench.worker.data import Batch, FreshBatches, Larger, batches_of, tensors_of
from ampbench.worker.distances import (
    Decisions,
    Distance,
    class_dimension,
    compare,
    compare_each,
    kept_outputs,
    named_outputs,
    outputs_in,
    scaled,
)
from ampbench.worker.machine import Cpu, Device, precision_flags
from ampbench.worker.memory import said_of
from ampbench.worker.step import EqualDraws, TrainingStep, build_step, seed_all, switch_off_dropout
from ampbench.workload import Workload

LOGITS, LOG_PROBABILITIES, PROBABILITIES = "logits", "log-probabilities", "probabilities"
NORMALISED = 1e-4
"""A row whose probabilities sum to one within this is a distribution already: a softmax in fp32 rounds at 1e-6."""
FEWEST_NUMBERS = 4
"""A sample of fewer free numbers has no relative error of its own: where they cross zero its norm may be anything. That
of one normal number is below a tenth of the typical one in 8% of samples, of two in 1%, of four in 0.02%."""
ROWS_AT_ONCE = 1 << 22
"""So many logits are turned into probabilities at a time: 32 MiB, a few times over."""
ALIKE = 2.0**-24
"""Rows that differ by less than this share of their norm are alike: rounded to fp32, they are the same."""
ZERO = ZERO_REFERENCE.format("output")
ONE_CLASS = "{} has a single class, and decides nothing"


def compared_outputs(workload: Workload, output: Any) -> Any:
    """Return what of a network's `output` is compared: all of it, or what `Workload.outputs` takes.

    Raises `WorkloadError` where that names what the network does not return, or leaves no floating tensor.
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
    found: dict[str, torch.Tensor] = {}
    for name in [wanted] if isinstance(wanted, str) else wanted:
        below = {key: one for key, one in named.items() if key == name or key.startswith((f"{name}.", f"{name}["))}
        if not below:
            has = few(key or "one tensor without a name" for key in named) or "no floating tensor"
            raise WorkloadError(f"the workload's outputs names {name!r}, and the network returns {has}")
        found |= below
    return found


def decisions_of(
    workload: Workload, names: Sequence[str], outputs: Sequence[torch.Tensor], targets: Any, seen: Sequence[Decisions]
) -> list[Decisions]:
    """Return where a classifier's classes lie in its `outputs`, [] for anything else.

    That is what `Workload.classes_dim` says, else what integer `targets` tell of the first output (`class_dimension`),
    else what its loss was `seen` to decide. Raises `WorkloadError` for a `classes_dim` that no output has.
    """
    given = workload.classes_dim
    if given is not None:
        by_name = given if isinstance(given, Mapping) else {names[0]: given}
        return [_told(name, dimension, names, outputs) for name, dimension in by_name.items()]
    dimension = class_dimension(outputs[0], targets) if outputs else None
    if dimension is not None:
        return [Decisions(0, outputs[0].shape, dimension)]
    return list({one.place: one for one in seen}.values())


def _told(name: str, dimension: int, names: Sequence[str], outputs: Sequence[torch.Tensor]) -> Decisions:
    """Return the decisions of an output in a dimension that the user says."""
    if name not in names:
        has = few(key or "one tensor without a name" for key in names)
        raise WorkloadError(f"classes_dim names {name!r}, and the outputs compared are {has}")
    place = names.index(name)
    shape = outputs[place].shape
    if not -len(shape) <= dimension < len(shape):
        called = name or "the output"
        raise WorkloadError(f"classes_dim is {dimension}, and {called} has {len(shape)} dimensions")
    return Decisions(place, shape, dimension % len(shape))


def batch_length(workload: Workload, case: Case) -> int | None:
    """Return how many samples the first batch has: the case's batch size where an input has a dimension of it.

    Else it is the length of the first input tensor; None where there is none.
    """
    shapes = [tensor.shape for tensor in tensors_of(batches_of(workload.inputs)[0]) if tensor.ndim]
    if case.batch_size is not None and any(case.batch_size in shape for shape in shapes):
        return case.batch_size
    return shapes[0][0] if shapes else None


class Compared:
    """The outputs of a group's reference, ready to hold others against: what all precisions share is found once.

    `decided` are the reference's decisions, `samples` is the length of the batch, `chances` are how far another
    reference step lies from it by output (empty: not known), `targets` are those of the batch. Outputs of one class
    decide nothing, as `notes` say.
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
        self.decided = [one for one in decided if one.shape[one.dimension] > 1]
        single = [one.place for one in decided if one.shape[one.dimension] == 1]
        self.notes = [ONE_CLASS.format(names[place] or "the output") for place in single]
        self._kinds = {one.place: row_kind(references[one.place], one) for one in self.decided}
        self._centred = {one.place: one for one in self.decided if self._kinds[one.place] == LOGITS}
        self._targets = tensors_of(targets)
        self._floors: dict[torch.dtype, tuple[Distance, list[Distance]]] = {}

    def floors(self, rounding: torch.dtype) -> tuple[Distance, list[Distance]]:
        """Return how far the references rounded to a dtype lie from themselves: all, and each as it is judged."""
        if rounding not in self._floors:
            rounded = [tensor.to(rounding).double() for tensor in self.references]
            self._floors[rounding] = self.distances(rounded)
        return self._floors[rounding]

    def distances(self, values: Sequence[torch.Tensor]) -> tuple[Distance, list[Distance]]:
        """Return the distance of `values` from the references, and of each as it is judged: rows of logits centred.

        Raises `ValueError` for other shapes.
        """
        every, each = compare_each(values, self.references, against=self.against)
        for place, made in self._centred.items():
            pair = (centred(one[place], made) for one in (values, self.references))
            each[place] = compare([next(pair)], [next(pair)], against=self.against)
        return every, each

    def errors(
        self,
        values: Sequence[torch.Tensor],
        distances: Sequence[Distance],
        rounding: torch.dtype,
        chances: Sequence[float | None] = (),
    ) -> list[OutputError]:
        """Return what each output errs, whose `distances` are known, by `chances` where those are given."""
        _, floors = self.floors(rounding)
        found = []
        for place, (name, distance) in enumerate(zip(self.names, distances, strict=True)):
            chance = chances[place] if chances else None
            pair = [one[place] for one in (values, self.references)]
            made = self._centred.get(place)
            if made is not None:
                pair = [centred(one, made) for one in pair]
            lost = 0 if made is None else 1 / made.shape[made.dimension]
            undefined = distance.undefined or ("" if chance is None else f"chance alone makes it {chance:.1e}")
            samples = SampleErrors(undefined) if undefined else sample_errors(pair[0], pair[1], self.samples, lost)
            found.append(
                OutputError(
                    name=name,
                    elements=distance.elements,
                    centred=made is not None,
                    rel_l2=None if undefined else distance.rel_l2,
                    floor_rel_l2=floors[place].rel_l2,
                    over_spread=over_spread(pair[0], pair[1], self._targets) if undefined in ("", ZERO) else None,
                    undefined=undefined,
                    sample_count=samples.count,
                    sample_p99_rel_l2=samples.p99,
                    sample_worst_rel_l2=samples.worst,
                    sample_undefined=samples.undefined,
                )
            )
        return found

    def predictions(self, values: Sequence[torch.Tensor]) -> Predictions | None:
        """Return how far the probabilities of a classifier lie from the reference's; None for anything else."""
        if not self.decided:
            return None
        kl, margins, flipped = [], [], []
        for made in self.decided:
            for value, reference in _rows(values[made.place], self.references[made.place], made):
                logs = [log_probabilities(one, self._kinds[made.place]) for one in (value, reference)]
                kl.append(divergences(*logs).cpu().numpy())
                top = reference.argmax(-1)
                best = logs[1].exp().topk(2, -1).values
                margin = best[:, 0] - best[:, 1]
                margins.append(margin.cpu().numpy())
                flipped.append(margin[value.argmax(-1) != top].cpu().numpy())
        rows, differing, every = (np.concatenate(parts) for parts in (kl, flipped, margins))
        undefined = _no_divergence(rows)
        return Predictions(
            outputs=[self.names[made.place] for made in self.decided],
            rows=len(rows),
            kl_mean=None if undefined else float(rows.mean()),
            kl_p99=None if undefined else float(np.quantile(rows, 0.99)),
            kl_undefined=undefined,
            median_margin=_known(np.median(every)) if len(every) else None,
            flipped_margin=_known(differing.max()) if len(differing) else None,
        )


@dataclass(frozen=True, slots=True)
class SampleErrors:
    """The relative errors of the samples of an output: 99% quantile and largest of `count`, or why there are none."""

    undefined: str = ""
    count: int | None = None
    p99: float | None = None
    worst: float | None = None


def sample_errors(value: torch.Tensor, reference: torch.Tensor, samples: int | None, lost: float = 0.0) -> SampleErrors:
    """Return the errors |x - r| / |r| of the samples of an output, which lie in its first dimension.

    `lost` is the share of the numbers of a sample that are not free (centred rows lose one each). Samples that are zero
    in the reference and not in the value have no relative error and are left out; infinite elements, too.
    """
    if samples is None:
        return SampleErrors("the inputs tell no batch size")
    if not reference.ndim or len(reference) != samples:
        first = "it is one number" if not reference.ndim else f"its first dimension is {len(reference):,}"
        return SampleErrors(f"{first}, and the batch has {counted(samples, 'sample')}")
    if samples == 0 or reference[0].numel() * (1 - lost) < FEWEST_NUMBERS - 1e-9:
        return SampleErrors(f"a sample has fewer than {FEWEST_NUMBERS} free numbers")
    finite = torch.isfinite(reference)
    r, exponent = scaled(torch.where(finite, reference, 0.0))
    x = torch.where(finite, value, 0.0) * 2.0**-exponent
    norm = r.flatten(1).norm(dim=1)
    apart = (x - r).flatten(1).norm(dim=1)
    errors = torch.where(apart == 0, 0.0, apart / norm)
    known = errors[torch.isfinite(errors)].cpu().numpy()
    if not len(known):
        return SampleErrors("every sample of the reference is zero")
    return SampleErrors(count=len(known), p99=float(np.quantile(known, 0.99)), worst=float(known.max()))


def over_spread(value: torch.Tensor, reference: torch.Tensor, targets: Sequence[torch.Tensor] = ()) -> float | None:
    """Return the norm of an output's error over that of its reference's rows less their mean; rows lie in the first
    dimension. None where there are fewer than two, or they are `ALIKE`; elements that are not finite are left out.

    Where the reference is zero, the rows are those of its `targets`: the first floating ones of its shape.
    """
    finite = torch.isfinite(reference)
    exact = torch.where(finite, reference, 0.0)
    alike = (one.double() for one in targets if one.is_floating_point() and one.shape == reference.shape)
    rows, exponent = scaled(exact if bool(exact.any()) else next(alike, exact).to(exact.device))
    if rows.numel() < 2 or len(rows) < 2:
        return None
    spread = float((rows - rows.mean(0)).norm())
    error = float(((torch.where(finite, value, 0.0) - exact) * 2.0**-exponent).norm())
    return error / spread if spread > ALIKE * float(rows.norm()) else None


def centred(tensor: torch.Tensor, made: Decisions) -> torch.Tensor:
    """Return rows of logits less their mean, which softmax does not see; of what is finite in them."""
    rows = tensor.reshape(made.shape)
    finite = torch.isfinite(rows)
    kept = torch.where(finite, rows, 0.0)
    mean = kept.sum(made.dimension, keepdim=True) / finite.sum(made.dimension, keepdim=True).clamp_min(1)
    return torch.where(finite, rows - mean, rows).reshape(tensor.shape)


def row_kind(reference: torch.Tensor, made: Decisions) -> str:
    """Return what the rows of a classifier's output are: `PROBABILITIES`, `LOG_PROBABILITIES` or `LOGITS`."""
    rows = reference.reshape(made.shape)
    if bool(((rows >= 0) & (rows <= 1 + NORMALISED)).all()):
        sums = rows.sum(made.dimension)
        return PROBABILITIES if bool(((sums - 1).abs() <= NORMALISED).all()) else LOGITS
    if bool((rows <= NORMALISED).all()) and bool((rows.logsumexp(made.dimension).abs() <= NORMALISED).all()):
        return LOG_PROBABILITIES
    return LOGITS


def log_probabilities(rows: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the logarithms of the probabilities that rows of some `kind` stand for, normalised."""
    if kind == PROBABILITIES:
        rows = rows.clamp_min(0).log()
    return rows.log_softmax(-1)


def divergences(logs: torch.Tensor, reference_logs: torch.Tensor) -> torch.Tensor:
    """Return the Kullback-Leibler divergence KL(r‖p) of each row in nats; infinite where p is 0 and r is not.

    It is summed as r·(d + e⁻ᵈ - 1), d = ln r - ln p, whose parts are none below zero and sum to the same: what is left
    of near-equal rows is then no rounding error of sums.
    """
    r = reference_logs.exp()
    apart = reference_logs - logs
    parts = torch.where(r > 0, r * (apart + torch.expm1(-apart)), logs.exp())
    return parts.clamp_min(0).sum(-1)


def _rows(value: torch.Tensor, reference: torch.Tensor, made: Decisions) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a classifier's value and reference as rows over classes, some at a time."""
    pair = [one.reshape(made.shape).movedim(made.dimension, -1) for one in (value, reference)]
    flat = [one.reshape(-1, one.shape[-1]) for one in pair]
    step = max(1, ROWS_AT_ONCE // flat[0].shape[-1])
    for start in range(0, len(flat[0]), step):
        yield flat[0][start : start + step], flat[1][start : start + step]


def _no_divergence(rows: "np.ndarray[Any, Any]") -> str:
    """Return why the divergence of rows is undefined, "" where it is not."""
    if not len(rows):
        return "there are no rows"
    if broken := int(np.isnan(rows).sum()):
        return f"{broken:,} of {len(rows):,} rows are not finite"
    if endless := int(np.isinf(rows).sum()):
        return f"{endless:,} of {len(rows):,} rows give a probability of 0 to what has one in the reference"
    return ""


def _known(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


DOUBT = 0.05
"""The one-sided level at which an agreement is proven or refuted."""
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
        self._precision = FP64 if dtype == FP64.name else PRECISIONS[BASELINE]
        self._fresh = FreshBatches(workload, compared.samples, larger=larger)
        self._truth: list[Classes] = []

    def measure(
        self, case: Case, device: Device, agreeing: int, decisions: int, seconds: float, notes: list[str]
    ) -> FurtherDecisions:
        """Return what further batches of `case` decide, where `agreeing` of its `decisions` so far are the reference's.

        They end as soon as the agreement is proven or refuted, or after the time that a step of `seconds` (by `spent`)
        gives them; where a third of what is needed has no room in it, they do not begin. `notes` say why they failed.
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
        except Exception as error:  # noqa: BLE001 - what a network makes of further batches is no fault of its case
            ended = "failed"
            notes.append(f"further batches failed: {said_of(error)}")
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
                with region, EqualDraws() if self._draws else nullcontext():
                    output = step.network.forward_alone(batch)
                outputs = kept_outputs(compared_outputs(self._workload, output), Cpu())
                if [one.shape for one in outputs] != [one.shape for one in self._compared.references]:
                    break
                yield [_decided(outputs[made.place], made) for made in self._compared.decided]
            step.let_go()


def spent(device: Device) -> float:
    """Return a clock's seconds: on a CPU the CPU time of this process by its threads, whatever others do; else time."""
    return process_time() / torch.get_num_threads() if device.type == "cpu" else perf_counter()


def state(agreeing: int, decisions: int) -> str:
    """Return "proven" or "refuted" where so many decisions decide whether 99% agree, one-sided at 95%; else "".

    By the bounds of `stats.share_bound`: that of the share that agree reaches 99% where so few that differ, were 1% to
    differ, have a chance of 5% at most; that of the share that differ exceeds 1% where so many have less than that.
    """
    differing = decisions - agreeing
    if chance_of_at_most(differing, decisions, 1 - ASKED_AGREEMENT) <= DOUBT:
        return "proven"
    return "refuted" if 1 - chance_of_at_most(differing - 1, decisions, 1 - ASKED_AGREEMENT) < DOUBT else ""


def needed(agreeing: int, decisions: int) -> int:
    """Return how many decisions would prove the agreement if all further ones agreed, `MOST_DECISIONS` at most."""
    differing = decisions - agreeing
    low, high = decisions, MOST_DECISIONS
    while low < high:
        middle = (low + high) // 2
        if state(middle - differing, middle) == "proven":
            high = middle
        else:
            low = middle + 1
    return high


def _decided(output: torch.Tensor, made: Decisions) -> torch.Tensor:
    rows = output.reshape(made.shape)
    return torch.where(rows.isnan().any(made.dimension), -1, rows.argmax(made.dimension))
