"""The share of an optimizer's step that arrives in the weights of a training, seen around the step itself.

Of a parameter with more than `SAMPLE` elements as many are looked at, evenly spaced, so that neither memory nor time
follow the size of the network.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.studies.watch import Arrival
from ampbench.trace.dtypes import HALVES, short_dtype
from ampbench.trace.ranges import flat
from ampbench.worker.late import Snapshot
from ampbench.worker.updates import sums_of, take_step

SAMPLE = 4096
_ALONE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Rprop", "ASGD", "Adadelta")
"""torch's optimizers that move each element by its own gradient and state."""
_PLAIN = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}
"""Settings of how a step is computed, which do not change its result."""


@dataclass(slots=True)
class _Before:
    """A parameter before a step, as samples: its weight and, stored in half, its gradient and optimizer's state."""

    parameter: torch.Tensor
    weight: torch.Tensor
    gradient: torch.Tensor | None = None
    state: dict[str, torch.Tensor] = field(default_factory=dict)


class Updates:
    """What the steps of a look did to parameters.

    `moved` says of all parameters with gradients whether any look saw them move. `strange` are those whose weights were
    the first that were not finite; `unjudged` names an optimizer whose steps in half cannot be repeated in fp64.
    """

    def __init__(self) -> None:
        self.moved: dict[str, bool] = {}
        self.strange: list[str] = []
        self.unjudged = ""
        self._before: dict[str, _Before] = {}
        self._shares: dict[tuple[str, torch.dtype, bool], tuple[float, dict[str, float]]] = {}

    def before(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> float | None:
        """Take samples of parameters; return the norm of their gradients, None where it is not finite."""
        scale = getattr(optimizer, "grad_scale", None)  # a fused step divides by it
        norms, self._before = [torch.zeros(())], {}
        for parameter in (member for group in optimizer.param_groups for member in group["params"]):
            name, gradient = names.get(id(parameter)), parameter.grad
            is_plain = parameter.is_floating_point() and not hasattr(parameter, "__tensor_flatten__")
            if name is None or gradient is None or not is_plain:
                continue
            norms.append(torch.linalg.vector_norm(flat(gradient.detach()), dtype=torch.float32).cpu())
            row = self._before[name] = _Before(parameter, _sampled(parameter))
            if parameter.dtype in HALVES and gradient.layout is torch.strided:
                row.gradient = _sampled(gradient) / (1.0 if scale is None else float(scale))
                row.state = {
                    key: _sampled(value) if value.shape == parameter.shape else value.detach().cpu().clone()
                    for key, value in optimizer.state.get(parameter, {}).items()
                    if isinstance(value, torch.Tensor)
                }
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) / (1.0 if scale is None else float(scale))
        return norm if math.isfinite(norm) else None

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of the parameters in the step that begins, by name."""
        return {name: row.parameter.grad for name, row in self._before.items() if row.parameter.grad is not None}

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare the change of each parameter with the intended one, as stored or, of fp32, as if stored in half."""
        rows, self._before = self._before, {}
        weights = {name: row.weight.double() for name, row in rows.items()}
        changes = {name: _sampled(row.parameter).double() - weights[name] for name, row in rows.items()}
        self.strange = self.strange or [name for name, change in changes.items() if not bool(change.isfinite().all())]
        in_half = {name: row for name, row in rows.items() if row.gradient is not None}
        intended = _intended(optimizer, in_half, weights) if in_half else {}
        groups = optimizer.param_groups
        rates = {id(member): group.get("lr", 1.0) for group in groups for member in group["params"]}
        for name, row in rows.items():
            parts = row.parameter.numel() / max(len(row.weight), 1)
            if row.gradient is None:
                self.moved[name] = True
                for dtype in HALVES if row.parameter.dtype not in HALVES else ():
                    stored = weights[name].to(dtype).double()
                    self._add((name, dtype, False), parts, _rounded(stored, changes[name], dtype), changes[name])
                continue
            moves = bool(changes[name].any())
            if moves or (rates[id(row.parameter)] and bool(row.gradient.any())):
                self.moved[name] = self.moved.get(name, False) or moves
            if name in intended:
                dtype = row.parameter.dtype
                rounded = _rounded(weights[name], intended[name], dtype)
                self._add((name, dtype, True), parts, changes[name], intended[name], rounded)
        if len(intended) < len(in_half):
            self.unjudged = type(optimizer).__name__

    def close(self) -> tuple[list[Arrival], dict[str, float]]:
        """Return each parameter's arrivals in a look, and the share of all updates that arrives in each storage.

        Shares are by the names of fields of `Look`.
        """
        shares, self._shares = self._shares, {}
        sums: dict[str, list[float]] = {}
        for (_, dtype, stored), (energy, row) in shares.items():
            total = sums.setdefault("kept" if stored else short_dtype(dtype), [0.0, 0.0])
            total[0] += energy
            total[1] += energy * row["kept"]
        whole = max((energy for energy, _ in sums.values()), default=0.0)
        arrivals = [
            Arrival(parameter=name, dtype=short_dtype(dtype), stored=stored, part=energy / whole, **row)
            for (name, dtype, stored), (energy, row) in shares.items()
        ]
        return arrivals, {name: kept / energy for name, (energy, kept) in sums.items()}

    def _add(
        self,
        key: tuple[str, torch.dtype, bool],
        parts: float,
        change: torch.Tensor,
        intended: torch.Tensor,
        rounded: torch.Tensor | None = None,
    ) -> None:
        """Keep the shares of a parameter, `parts` times its sample; `rounded` is the effect of storage alone."""
        energy = float(torch.dot(intended, intended))
        if not (0 < energy < math.inf and bool(change.isfinite().all())):
            return
        name, size = key[0], int(torch.count_nonzero(intended))
        lost = intended[(change if rounded is None else rounded) == 0]
        sums = sums_of([(name, change.clone())], {name: intended}, {name: (energy, size)})[name]
        row = {"kept": sums.along, "swallowed": sums.swallowed_energy, "by_storage": float(torch.dot(lost, lost))}
        self._shares[key] = energy * parts, {field: value / energy for field, value in row.items()}


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU of at most `SAMPLE` elements, evenly spaced."""
    values = tensor.detach().reshape(-1)
    return values[:: -(-len(values) // SAMPLE) or 1].cpu().clone()


def _rounded(stored: torch.Tensor, change: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the change of weights that are `stored` on the grid of `dtype` where a sum is rounded to that."""
    return (stored + change).to(dtype).double() - stored


def _intended(
    optimizer: torch.optim.Optimizer, rows: Mapping[str, _Before], weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the change that the same step makes in fp64, with the state and gradients of today; {} if unknown."""
    kind: Any = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind.__name__ not in _ALONE:
        return {}
    places = {id(row.parameter): name for name, row in rows.items()}
    groups = optimizer.param_groups
    members = [[places[id(member)] for member in group["params"] if id(member) in places] for group in groups]
    named = [(group, names) for group, names in zip(groups, members, strict=True) if names]
    settings = [
        {key: _PLAIN.get(key, value) for key, value in group.items() if key not in ("params", "param_names")}
        | {"lr": float(group["lr"])}
        for group, _ in named
    ]
    order = [name for _, names in named for name in names]

    def make(parameters: Iterable[torch.nn.Parameter]) -> Any:
        known = dict(zip(order, parameters, strict=True))
        rates = [row["lr"] for row in settings]
        members = [[known[name] for name in names] for _, names in named]
        return kind([{"params": row, "lr": rate} for row, rate in zip(members, rates, strict=True)])

    snapshot = Snapshot(
        weights=weights,
        trained=frozenset(order),
        state={name: rows[name].state for name in order},
        resident=frozenset(key for row in rows.values() for key in row.state),
        groups=settings,
    )
    gradients = {name: row.gradient for name, row in rows.items() if row.gradient is not None}
    ordered = {name: weights[name] for name in order}
    taken = take_step(make, dict.fromkeys(order, torch.float64), ordered, gradients, snapshot)
    return {name: taken.weights[name] - weights[name] for name in order}
