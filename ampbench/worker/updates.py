"""The change that one optimizer step makes to the stored weights, compared with fp64; untimed.

The step starts from a `Snapshot` of a training in progress, because the first step of Adam is lr·sign(g) for any
gradient. In fp64 it changes the weights by Δ*, in a precision by ΔL, the difference of the *stored* weights: a change
below half a unit in the last place is lost.
"""

import copy
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.core.statement import NoNoise
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.measured import BINS, CARRIES, LOWEST_BIN, Update
from ampbench.trace.dtypes import short_dtype
from ampbench.worker.data import pairs_of, stored_dtype, tensors_of
from ampbench.worker.distances import is_finite, real_parts
from ampbench.worker.late import Snapshot, Tensors
from ampbench.worker.machine import Device
from ampbench.worker.memory import said_of
from ampbench.worker.network import clip_as_all, in_blocks, steps_alone
from ampbench.worker.outputs import batch_length
from ampbench.worker.step import OwnStep, TrainingStep, forked_draws, random_states, seed_all
from ampbench.workload import Workload

DRAWS = 16
"""Steps over which κ is averaged where the optimizer draws random numbers, as stochastic rounding does."""
RECOVERED = 0.1
"""The optimizer's state counts as part of the weights if the update with it errs no more than this."""

BLAMED = 0.01
"""The relative error of an update from which its causes are measured even where weights are stored in fp32."""

Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """The gradients of a step at the workload's own weights, as the optimizer gets them, and the `stored` dtypes.

    `noise` holds the squared norm and the noise of a batch's fp64 gradient by parameter; it is empty for the reason
    `no_noise`. `make` made the optimizer, which `draws` random numbers of its own. With `skipped`, GradScaler skipped
    the step.
    """

    first: Tensors
    noise: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    no_noise: str = ""
    stored: Mapping[str, torch.dtype]
    make: Make
    draws: bool
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Intended:
    """The change Δ* that the step makes in fp64, from a snapshot with `gradients`.

    An optimizer that refuses fp64 steps in fp32 (`dtype`). `blocks` name the weights that move together. `sizes` are
    |Δ*|² and the number of elements that move, by parameter. `shares` caches `_headroom` by storage dtype.
    """

    snapshot: Snapshot
    gradients: Gradients
    blocks: Sequence[Sequence[str]] = ()
    sizes: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    undefined: str = ""
    dtype: str = "fp64"
    shares: dict[torch.dtype, list[float]] = field(default_factory=dict)

    def moves(self, names: Sequence[str], where: Device) -> Tensors:
        """Return the change of the weights of a block, in fp64 on device `where`.

        The step is repeated for every block and precision: keeping all changes would take twice the fp32 weights.
        """
        exact = self.gradients
        weights = _weights(self.snapshot, exact.stored, where, names)
        seed_all(0)
        taken = take_step(exact.make, exact.stored, weights, exact.first, self.snapshot)
        return dict(_moved(taken, weights, where))


def halves_of(workload: Workload, case: Case) -> tuple[float, list[tuple[Any, Any]]]:
    """Return the first half's share of a batch, and both halves' inputs and targets; [] where it cannot be halved.

    Tensors are halved whose first dimension is the batch size: samples may be sorted, so every other one is taken.
    """
    samples, pair = batch_length(workload, case) or 0, pairs_of(workload)[0]
    if samples < 2 or not any(tensor.shape[:1] == (samples,) for tensor in tensors_of(pair[0])):
        return 0.0, []

    def part(tensor: torch.Tensor, begin: int) -> torch.Tensor:
        whole = tensor.shape[:1] != (samples,)
        return tensor if whole else tensor.detach()[begin::2].requires_grad_(tensor.requires_grad)

    halves = [pytree.tree_map_only(torch.Tensor, partial(part, begin=begin), pair) for begin in (0, 1)]
    return (samples + 1) // 2 / samples, halves


def with_noise(step: TrainingStep, workload: Workload, case: Case, gradients: Gradients) -> Gradients:
    """Return the fp64 `gradients` of a step that has not moved with the noise of a batch; the step is unchanged.

    It comes from a second batch, or from the halves of a single one if their mean gradient is the gradient of the
    batch: noise is |g1 - g2|² / 2, of parts with the shares p and q of a batch's samples pq |g1 - g2|², which has the
    same mean. Without noise for a workload's own step, which moves the weights, and for a batch that cannot be halved.
    """
    several = len(step.data.given) > 1
    share, parts = (0.0, step.data.given[1:2]) if several else halves_of(workload, case)
    if isinstance(step, OwnStep) or not parts:
        return replace(gradients, no_noise=NoNoise.NOT_HALVED)
    try:
        with step.trying(), forked_draws(step.device):
            seed_all(0)
            original = dict(workload.module.named_buffers())
            for name, buffer in step.module.named_buffers():
                buffer.data.copy_(original[name])
            return _with_noise(step, gradients, share, parts)
    except Exception:
        if several:
            raise
        return replace(gradients, no_noise=NoNoise.NOT_HALVED)  # a network for one batch size
    finally:
        for name, weight in step.stored().items():
            weight.grad = gradients.first.get(name)


def _with_noise(step: TrainingStep, gradients: Gradients, share: float, parts: Sequence[tuple[Any, Any]]) -> Gradients:
    """Do the same by a second batch, or by the two halves of a batch, the first with this `share` of its samples."""
    step.optimizer.zero_grad(set_to_none=True)
    second, weights, noise = step.add_gradients(*parts[0]), step.stored(), {}
    if second.keys() != gradients.first.keys():
        return replace(gradients, no_noise=NoNoise.OTHER_GRADIENTS)
    for name, gradient in gradients.first.items():
        pair = [value.to_dense() for value in (gradient, second.pop(name))]
        sizes = [float(real_parts(value).square().sum()) for value in (*pair, pair[0] - pair[1])]
        if share:
            noise[name] = sizes[0], sizes[2] * share / (1 - share)
            weights[name].grad = pair[1].mul_(share).sub_(pair[0]).div_(1 - share)  # minus the other half's
        else:
            noise[name] = (sizes[0] + sizes[1]) / 2, sizes[2] / 2
    if share:
        apart = step.add_gradients(*parts[1]).values()
        missed = sum(float(real_parts(value.to_dense()).square().sum()) for value in apart) * (1 - share) ** 2
        if not missed <= sum(size for _, size in noise.values()) / 4:
            return replace(gradients, no_noise=NoNoise.NO_MEAN)
    return replace(gradients, noise=noise)


def intended_update(snapshot: Snapshot, gradients: Gradients, where: Device) -> Intended:
    """Return the optimizer's change in fp64 (fp32 if it refuses fp64), on device `where`, with fp64 `gradients`."""
    if snapshot.undefined:
        return Intended(snapshot, gradients, undefined=snapshot.undefined)
    refused = ""
    single = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    in_fp32 = {name: single.get(dtype, dtype) for name, dtype in gradients.stored.items()}
    for dtype, stored in (("fp64", gradients.stored), ("fp32", in_fp32)):
        sizes, finite = {}, True
        try:
            blocks = _blocks(gradients.make, stored, snapshot, where)
            intended = Intended(snapshot, replace(gradients, stored=stored), blocks, dtype=dtype)
            for names in blocks:
                for name, move in intended.moves(names, where).items():
                    finite &= is_finite([move])
                    sizes[name] = float(torch.linalg.vector_norm(move)) ** 2, int(torch.count_nonzero(move))
        except Exception as error:  # noqa: BLE001 - a user's optimizer
            refused = refused or f"the optimizer's step fails in fp64: {said_of(error)}"
            continue
        if not finite:
            return replace(intended, undefined=f"parameters are not finite after the step in {dtype}")
        if not any(count for _, count in sizes.values()):
            return replace(intended, undefined=f"the step changes no parameter in {dtype}")
        return replace(intended, sizes=sizes)
    return Intended(snapshot, gradients, undefined=refused)


def measure_update(intended: Intended, gradients: Gradients, device: Device, keep: Device) -> Update:
    """Return the update that a precision makes with its `gradients`, compared with the `intended` one.

    The optimizer's step runs on `device`, in the dtypes that the precision stores; errors are computed in fp64 on
    `keep`.
    """
    steps = intended.snapshot.steps
    if intended.undefined:
        return Update(steps=steps, undefined=intended.undefined)
    if gradients.skipped:
        return Update(steps=steps, undefined="GradScaler skipped the step")
    try:
        return _measured(intended, gradients, device, keep)
    except Exception as error:  # noqa: BLE001 - a user's optimizer; memory
        return Update(steps=steps, undefined=f"the optimizer's step fails: {said_of(error)}")


def _measured(intended: Intended, gradients: Gradients, device: Device, keep: Device) -> Update:
    snapshot = intended.snapshot
    held: Counter[torch.dtype] = Counter()  # elements of moving weights
    for name, (_, moving) in intended.sizes.items():
        held[gradients.stored[name]] += snapshot.weights[name].numel() if moving else 0
    most = held.most_common(1)[0][0]
    storage = most.to_real() if most.is_complex else most
    native = storage is not torch.float32
    update_of = partial(Update, steps=snapshot.steps, storage=short_dtype(storage), intended=intended.dtype)
    draws: list[dict[str, Sums]] = [{}]
    kept_in: dict[tuple[str, str], torch.dtype] = {}  # the dtypes of the optimizer's state
    nonfinite = 0
    for names in intended.blocks:
        moves = intended.moves(names, keep)
        weights = _weights(snapshot, gradients.stored, device, names)
        step = partial(take_step, gradients.make, gradients.stored, weights, gradients.first, snapshot, native=native)
        seed_all(0)
        before = random_states(device)
        taken = step()
        nonfinite += sum(int((~weight.isfinite()).sum()) for weight in taken.weights.values())
        draws[0] |= sums_of(_moved(taken, weights, keep), moves, intended.sizes)
        for name, state in taken.state.items():
            kept_in |= {(name, key): value.dtype for key, value in state.items() if isinstance(value, torch.Tensor)}
        if gradients.draws or random_states(device) != before:
            draws += [sums_of(_moved(step(), weights, keep), moves, intended.sizes) for _ in range(DRAWS - 1)]
        del moves, weights, step, taken
    if nonfinite:
        elements = "parameter element is" if nonfinite == 1 else "parameter elements are"
        return update_of(nonfinite=nonfinite, undefined=f"{nonfinite:,} {elements} not finite after the step")
    counted = ""
    if len(draws) == 1 and native and _rel_l2(draws[0]) > RECOVERED:
        counted, parts = _with_state(gradients, intended, device, keep)
        draws = [parts] if parts else draws
    update = _summed(draws)
    if native:
        update["energies"] = intended.shares.get(storage) or _headroom(intended, gradients.stored, storage, keep)
        intended.shares[storage] = update["energies"]
    if native or (update["rel_l2"] or 0.0) > BLAMED:
        errors = _blamed(intended, gradients, kept_in, keep)
        update |= zip(("gradient_rel_l2", "state_rel_l2", "storage_rel_l2"), errors, strict=True)
    return update_of(nonfinite=0, counted_state=counted, **update)


def batch_noise(intended: Intended, gradients: Gradients, tensor: str | None = None) -> dict[str, Any]:
    """Return `noise` and `tensor_noise` of a `GradientDivergence`, or the reason `no_noise`."""
    exact = intended.gradients
    if exact.no_noise:
        return {"no_noise": exact.no_noise}
    if gradients.first.keys() != exact.noise.keys():
        return {"no_noise": NoNoise.OTHER_GRADIENTS}
    norm = noise = 0.0
    for name in gradients.first:
        norm, noise = norm + exact.noise[name][0], noise + exact.noise[name][1]
    if not (0 < norm < math.inf and 0 < noise < math.inf):
        return {"no_noise": NoNoise.NOT_FINITE}
    size, apart = exact.noise.get(tensor or "", (0.0, 0.0))
    return {"noise": math.sqrt(noise / norm), "tensor_noise": math.sqrt(apart / size) if size else None}


def difference(after: torch.Tensor, before: torch.Tensor, keep: Device) -> torch.Tensor:
    """Return after - before in fp64 on `keep`; complex tensors as real and imaginary parts."""
    return _in_fp64(after, keep) - _in_fp64(before, keep)


def _in_fp64(tensor: torch.Tensor, keep: Device) -> torch.Tensor:
    return real_parts(tensor.detach().to_dense()).to(keep.type, torch.float64)


def _weights(
    snapshot: Snapshot, stored: Mapping[str, torch.dtype], device: Device, names: Iterable[str]
) -> dict[str, torch.Tensor]:
    return {name: snapshot.weights[name].to(device.type, stored[name]) for name in names}


def _parameters(
    stored: Mapping[str, torch.dtype], weights: Tensors, snapshot: Snapshot, device: str
) -> dict[str, torch.nn.Parameter]:
    """Return an optimizer's parameters: copies of the `weights` given, the others as shapes without memory."""
    return {
        name: torch.nn.Parameter(
            weights[name].detach().clone()
            if name in weights
            else torch.zeros((), dtype=dtype, device=device).expand(snapshot.weights[name].shape),
            requires_grad=name in snapshot.trained,
        )
        for name, dtype in stored.items()
        if dtype.is_floating_point or dtype.is_complex
    }


def _blocks(make: Make, stored: Mapping[str, torch.dtype], snapshot: Snapshot, where: Device) -> list[list[str]]:
    """Return the names of the weights that move together: some where an optimizer `steps_alone`, else all."""
    parameters = _parameters(stored, {}, snapshot, where.type)
    alone = steps_alone(make(iter(parameters.values())))
    return in_blocks({name: weight.numel() for name, weight in parameters.items()}) if alone else [list(parameters)]


@dataclass(frozen=True, slots=True)
class _Taken:
    """An optimizer's step: the weights after it, its state by parameter and key before and after."""

    weights: Tensors
    before: Mapping[str, Mapping[str, torch.Tensor]]
    state: Mapping[str, Mapping[str, Any]]


def take_step(
    make: Make,
    stored: Mapping[str, torch.dtype],
    weights: Tensors,
    gradients: Tensors,
    snapshot: Snapshot,
    *,
    native: bool = False,
    watch: bool = False,
    state: Mapping[str, Mapping[str, Any]] | None = None,
) -> _Taken:
    """Take a step of the optimizer from a snapshot's state (or `state`), cast to the dtype of each weight.

    `weights` are the weights to move, out of all that are `stored`. `native`: state keeps the dtypes that the optimizer
    chooses for such weights, and state that the snapshot lacks begins with a step of learning rate zero. `watch` keeps
    the state before the step.
    """
    every = _parameters(stored, weights, snapshot, next(iter(weights.values())).device.type)
    optimizer = make(iter(every.values()))
    parameters = {name: every[name] for name in weights}
    if len(optimizer.param_groups) != len(snapshot.groups):
        raise WorkloadError("its optimizer makes other groups of other parameters")
    if len(every) > len(parameters):
        known = {parameter: name for name, parameter in every.items()}
        names = [known[weight] for group in optimizer.param_groups for weight in group["params"]]
        where = next(iter(weights.values())).device
        clip_as_all(optimizer, lambda: [gradients[name].to(where, stored[name]) for name in names if name in gradients])
    if native:  # a step of learning rate zero creates the state, in the optimizer's dtypes; weights stay
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
        _give(parameters, gradients)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
    for group, settings in zip(optimizer.param_groups, snapshot.groups, strict=True):
        group.update(copy.deepcopy(dict(settings)))
    for name, parameter in parameters.items():
        parameter_state = optimizer.state[parameter] if (state or snapshot.state).get(name) else {}
        for key, value in (state or snapshot.state).get(name, {}).items():
            held = parameter_state.get(key)
            resident = key in snapshot.resident and isinstance(value, torch.Tensor)
            if native and isinstance(held, torch.Tensor) and isinstance(value, torch.Tensor):
                parameter_state[key] = value.to(held.device, held.dtype, copy=True).reshape(held.shape)
            else:
                parameter_state[key] = _on_device_of(value, parameter) if resident else copy.deepcopy(value)
    _give(parameters, gradients)
    before = {
        name: {
            key: value.clone()
            for key, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.is_floating_point()
        }
        for name, parameter in (parameters.items() if watch else ())
        if parameter in optimizer.state
    }
    optimizer.step()
    after = {name: optimizer.state[parameter] for name, parameter in parameters.items() if parameter in optimizer.state}
    return _Taken({name: parameter.detach() for name, parameter in parameters.items()}, before, after)


def _give(parameters: Mapping[str, torch.nn.Parameter], gradients: Tensors) -> None:
    for name, parameter in parameters.items():
        gradient = gradients.get(name)
        parameter.grad = (
            None if gradient is None else gradient.detach().to(parameter.device, parameter.dtype, copy=True)
        )


def _on_device_of(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a copy of a state tensor on its parameter's device, in its dtype unless it is a scalar on its own."""
    floating = value.is_floating_point() or value.is_complex()
    dtype = parameter.dtype if floating and (value.ndim or value.numel() == parameter.numel()) else value.dtype
    if value.is_complex() != dtype.is_complex:
        dtype = stored_dtype(value.dtype, parameter.dtype)
    return value.to(parameter.device, dtype, copy=True)


def _moved(taken: _Taken, weights: Tensors, keep: Device) -> Iterable[tuple[str, torch.Tensor]]:
    return ((name, difference(taken.weights[name], weight, keep)) for name, weight in weights.items())


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over one parameter: |Δ*|², <ΔL, Δ*>, |ΔL - Δ*|², elements that should move, those that do not, and |Δ*|² of
    the latter."""

    energy: float
    along: float
    apart: float
    moving: int
    swallowed: int
    swallowed_energy: float


def sums_of(
    moved: Iterable[tuple[str, torch.Tensor]], moves: Tensors, sizes: Mapping[str, tuple[float, int]]
) -> dict[str, Sums]:
    """Return the sums over each parameter of its change and the intended one, `moves`, of these `sizes`."""
    parts = {}
    for name, change in moved:
        intended_change = moves[name].flatten()
        energy, moving = sizes[name]
        change = change.flatten()  # noqa: PLW2901
        along = float(torch.dot(change, intended_change))
        still = intended_change * (change == 0)
        parts[name] = Sums(
            energy=energy,
            along=along,
            apart=float(torch.linalg.vector_norm(change.sub_(intended_change))) ** 2,
            moving=moving,
            swallowed=int(torch.count_nonzero(still)),
            swallowed_energy=float(torch.dot(still, still)),
        )
    return parts


def _apart(moved: Iterable[tuple[str, torch.Tensor]], moves: Tensors) -> list[float]:
    return [float(torch.linalg.vector_norm(change.sub_(moves[name]))) ** 2 for name, change in moved]


def _total(parts: Mapping[str, Sums], name: str) -> float:
    return math.fsum(getattr(sums, name) for sums in parts.values())


def _rel_l2(parts: Mapping[str, Sums]) -> float:
    return math.sqrt(_total(parts, "apart") / _total(parts, "energy"))


def _summed(steps: Sequence[dict[str, Sums]]) -> dict[str, Any]:
    """Return the fields of an `Update` that follow from the sums of one step, or of several random draws."""
    first = steps[0]
    energy = _total(first, "energy")
    draws = [_total(parts, "along") / energy for parts in steps]
    kept = math.fsum(draws) / len(draws)
    apart = math.fsum(_total(parts, "apart") for parts in steps) / len(steps) / energy
    carriers = {name: sums.energy for name, sums in first.items() if sums.energy >= CARRIES * energy}
    kepts = {name: math.fsum(parts[name].along for parts in steps) / len(steps) / e for name, e in carriers.items()}
    worst = min(kepts, key=lambda name: kepts[name], default=None)
    spread = statistics.stdev(draws) / math.sqrt(len(draws)) if len(draws) > 1 else None
    return {
        "rel_l2": math.sqrt(apart),
        "kept": kept,
        "kept_error": spread,
        "noise": math.sqrt(max(apart - (1 - kept) ** 2, 0.0)),
        "moving": int(_total(first, "moving")),
        "swallowed": int(_total(first, "swallowed")),
        "swallowed_energy": min(_total(first, "swallowed_energy") / energy, 1.0),
        "worst_parameter": worst,
        "worst_kept": kepts[worst] if worst else None,
    }


def _with_state(gradients: Gradients, intended: Intended, device: Device, keep: Device) -> tuple[str, dict[str, Sums]]:
    """Return the key of the state that holds the lost part of the updates, and the sums with it; "" without one.

    Such state is Kahan's compensation (weight plus or minus it is the true value) or a copy of the weights in more
    digits. It is recognised by effect: with it the update errs at most `RECOVERED`.
    """
    snapshot, stored = intended.snapshot, gradients.stored
    moving = [name for name, (_, count) in intended.sizes.items() if count]
    # the smallest tensor that matters rules out most keys
    total = math.fsum(energy for energy, _ in intended.sizes.values())
    carrying = [name for name in moving if intended.sizes[name][0] >= CARRIES * total] or moving
    probe = min(carrying, key=lambda name: snapshot.weights[name].numel())

    def together(taken: _Taken, weights: Tensors, name: str, key: str, signs: tuple[int, int]) -> torch.Tensor:
        change = difference(taken.weights[name], weights[name], keep) * signs[0]
        if key in taken.before.get(name, {}):
            change += signs[1] * difference(taken.state[name][key], taken.before[name][key], keep)
        return change

    def watched(names: Sequence[str]) -> tuple[_Taken, Tensors, Tensors]:
        moves, weights = intended.moves(names, keep), _weights(snapshot, stored, device, names)
        taken = take_step(gradients.make, stored, weights, gradients.first, snapshot, native=True, watch=True)
        return taken, weights, moves

    taken, weights, moves = watched(next(names for names in intended.blocks if probe in names))
    limit = math.sqrt(intended.sizes[probe][0]) / 2
    held_in = [
        (key, signs)
        for key in sorted(taken.before.get(probe, {}))
        for signs in ((1, 1), (1, -1), (0, 1))
        if not math.sqrt(_apart([(probe, together(taken, weights, probe, key, signs))], moves)[0]) > limit
    ]
    best: tuple[float, str, dict[str, Sums]] = (RECOVERED, "", {})
    for key, signs in held_in:
        parts: dict[str, Sums] = {}
        for names in intended.blocks:
            taken, weights, moves = watched(names)
            if any(key not in taken.before.get(name, {}) for name in names if intended.sizes[name][1]):
                break
            summed = ((name, together(taken, weights, name, key, signs)) for name in names)
            parts |= sums_of(summed, moves, intended.sizes)
        else:
            if (error := _rel_l2(parts)) <= best[0]:
                best = error, key, parts
    return best[1:]


def _headroom(intended: Intended, stored: Mapping[str, torch.dtype], storage: torch.dtype, keep: Device) -> list[float]:
    """Return the shares of |Δ*|² of intended changes by their size in half units in the last place.

    Only weights `stored` in the dtype `storage` count; bins are those of `Update.energies`.
    """
    info = torch.finfo(storage)
    bits, least = 1 - round(math.log2(info.eps)), round(math.log2(info.smallest_normal)) + 1
    energies = torch.zeros(BINS, dtype=torch.float64)
    for names in intended.blocks:
        for name, move in intended.moves(names, keep).items():
            if stored[name] is not storage:
                continue
            true = move.flatten()
            weight = _in_fp64(intended.snapshot.weights[name].to(storage), keep).flatten()
            if intended.sizes[name][1] < len(true):
                weight, true = weight[true != 0], true[true != 0]
            exponent = torch.frexp(weight)[1]
            if not bool(weight.all()):
                exponent = torch.where(weight == 0, least, exponent)
            bins = (torch.frexp(true)[1] - exponent.clamp_(min=least)).add_(bits - LOWEST_BIN).clamp_(0, BINS - 1)
            energies += torch.bincount(bins, weights=true.square(), minlength=BINS).cpu()
    return [float(f"{share:.4g}") for share in (energies / energies.sum()).tolist()]


def _blamed(
    intended: Intended, gradients: Gradients, kept_in: Mapping[tuple[str, str], torch.dtype], keep: Device
) -> tuple[float, float, float]:
    """Return the update's error from the precision's gradients alone, from its rounded state alone, from storage alone.

    Everything else is in fp64, including the optimizer's arithmetic. State is rounded to the precision's dtypes in
    `kept_in`, by parameter and key.
    """
    snapshot, exact = intended.snapshot, intended.gradients
    apart: tuple[list[float], ...] = ([], [], [])
    for names in intended.blocks:
        moves = intended.moves(names, keep)
        double = _weights(snapshot, exact.stored, keep, names)
        step = partial(take_step, gradients.make, exact.stored, snapshot=snapshot)
        apart[0].extend(_apart(_moved(step(weights=double, gradients=gradients.first), double, keep), moves))
        rounded = {
            name: {
                key: value.to(kept_in[name, key]).to(value.dtype) if (name, key) in kept_in else value
                for key, value in snapshot.state[name].items()
            }
            for name in names
            if name in snapshot.state
        }
        if any(snapshot.state.values()):
            taken = step(weights=double, gradients=exact.first, state=rounded)
            apart[1].extend(_apart(_moved(taken, double, keep), moves))
        low = {name: weight.to(gradients.stored[name]).to(weight.dtype) for name, weight in double.items()}
        del double
        taken = step(weights=low, gradients=exact.first)
        stored = {name: weight.to(gradients.stored[name]) for name, weight in taken.weights.items()}
        apart[2].extend(_apart(((name, difference(stored[name], weight, keep)) for name, weight in low.items()), moves))
        del moves, low, taken, stored
    energy = math.fsum(size for size, _ in intended.sizes.values())
    by_gradients, by_state, by_storage = (math.sqrt(math.fsum(errors) / energy) for errors in apart)
    return by_gradients, by_state, by_storage
