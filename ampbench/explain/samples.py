"""How far each module's outputs are off in a whole run: of a sample of them, against that of another run."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from ampbench.explain.module_runs import ModuleRun, watch_runs
from ampbench.explain.modules import floating_stored

SAMPLE = 65_536
"""How many elements of each module's outputs `sample_outputs` keeps."""

_SEED = 0


class Samples:
    """What `sample_outputs` kept: per module, `limit` values at most of what it returned, in fp64 on the CPU."""

    def __init__(self, limit: int):
        self.limit = limit
        self.values: dict[str, list[torch.Tensor]] = {}
        self._left: dict[str, int] = {}

    def take(self, path: str, tensor: torch.Tensor) -> None:
        """Keep values of one output, at places that only its size decides."""
        left = self._left.get(path, self.limit)
        count = min(left, tensor.numel())
        if not count:
            return
        self._left[path] = left - count
        flat = tensor.detach().reshape(-1)
        if count < len(flat):
            generator = torch.Generator().manual_seed(_SEED)
            flat = flat[torch.randint(len(flat), (count,), generator=generator).to(flat.device)]
        self.values.setdefault(path, []).append(flat.to("cpu", torch.float64, copy=True))


@contextmanager
def sample_outputs(model: torch.nn.Module, limit: int = SAMPLE) -> Iterator[Samples]:
    """Keep a sample of the floating outputs of every module, `limit` elements each, as the block runs `model`.

    Two runs on inputs of the same shapes, in any precisions, keep the same elements. A module's first outputs are
    sampled until its limit is reached. Results stay the same, bit by bit.
    """
    seen = Samples(limit)

    def take(run: ModuleRun) -> None:
        for tensor in floating_stored(run.returned):
            seen.take(run.path, tensor)

    with watch_runs(model, take):
        yield seen


def total_errors(reference: Samples, low: Samples) -> Mapping[str, tuple[float | None, int]]:
    """Return, by module, the relative L2 error of the run `low` against `reference`, and of how many elements.

    None where it is undefined: a value is not finite, all of the reference's are zero, or the two runs returned other
    shapes.
    """
    found: dict[str, tuple[float | None, int]] = {}
    for path, values in reference.values.items():
        others = low.values.get(path, [])
        if [len(value) for value in values] != [len(value) for value in others]:
            found[path] = (None, 0)
            continue
        exact, other = torch.cat(values), torch.cat(others)
        norm = float(torch.linalg.vector_norm(exact))
        error = float(torch.linalg.vector_norm(other - exact)) / norm if norm else math.nan
        found[path] = (error if math.isfinite(error) else None, len(exact))
    return found
