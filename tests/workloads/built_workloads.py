"""Building and running workloads for the tests of this folder, as a worker does.

`python tests/workloads/built_workloads.py` records the digests anew, after a version was bumped on purpose.
"""

import copy
import importlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.core.precisions import PRECISIONS
from ampbench.trace.dtypes import autocast_of
from ampbench.worker import data
from ampbench.worker.sources import build_workload
from ampbench.workload import Workload
from ampbench.workloads import index

DIGESTS = Path(__file__).with_name("digests.json")
NAMES = tuple(index.WORKLOADS)


def has(package: str) -> bool:
    try:
        importlib.import_module(package)
    except (ImportError, RuntimeError):  # RuntimeError: beside another build of torch
        return False
    return True


HAS = {needs: has(needs) for needs in sorted({spec.needs for spec in index.WORKLOADS.values() if spec.needs})}
HERE = tuple(name for name, spec in index.WORKLOADS.items() if HAS.get(spec.needs, True))
"""The workloads that can be built on this machine."""

OF_ITS_PYTHON = ("characters",)
"""Workloads whose data, but not whose weights, belongs to the version of Python."""

HEAVY = ("resnet50", "resnet18")
"""Workloads whose weights are many in every preset: most of what they are tested for is left to the slow tests."""


def build(name: str, preset: str = "tiny", seed: int = 0, **overrides: int) -> Workload:
    spec = index.WORKLOADS[name]
    parameters = index.resolve_parameters(spec, preset, overrides)
    return build_workload(index.source(spec), parameters, seed)


def leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def batch(workload: Workload) -> tuple[Any, Any]:
    """Return the inputs and targets of the first batch, or of the only one."""
    return (workload.inputs[0], workload.targets[0]) if isinstance(workload.inputs, list) else (
        workload.inputs, workload.targets
    )  # fmt: skip


def forward(module: torch.nn.Module, inputs: Any) -> Any:
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


def step(workload: Workload, precision: str) -> tuple[torch.nn.Module, Any, torch.Tensor]:
    """Run one training step in `precision` or "fp64"; return the module with its gradients, the output, the loss."""
    row = PRECISIONS.get(precision)
    storage = getattr(torch, row.storage) if row else torch.float64
    module = copy.deepcopy(workload.module).train()
    if storage != torch.float32:  # where fp32 is stored, what is in half stays there
        module = module.to(storage)
    autocast = autocast_of(row, "cpu")() if row else nullcontext()
    optimizer = workload.optimizer(module.parameters())
    inputs, targets = batch(workload)
    with autocast:
        output = forward(module, cast(inputs, storage))
        loss = workload.loss(output, targets)
    loss.backward()
    optimizer.step()
    return module, output, loss


def rms_by_module(workload: Workload, *, train: bool) -> dict[str, float]:
    """Return the RMS of every floating output of every module in one forward pass; several outputs are numbered."""
    seen: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            for place, leaf in enumerate(leaves(output)):
                if leaf.is_floating_point() and leaf.numel():  # no token may go to an expert
                    seen[f"{name}#{place}"] = leaf.square().mean(dtype=torch.float64).sqrt().item()

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in workload.module.named_modules()]
    # A copy's running statistics would cost as much as the network; those of one training pass are put back instead.
    buffers = {name: buffer.clone() for name, buffer in workload.module.named_buffers()}
    workload.module.train(train)
    with torch.no_grad():
        forward(workload.module, batch(workload)[0])
    for handle in handles:
        handle.remove()
    for name, buffer in workload.module.named_buffers():
        buffer.copy_(buffers[name])
    return seen


def digests(name: str, preset: str) -> dict[str, str]:
    workload = build(name, preset)
    inputs = [(f"inputs.{place}", leaf) for place, leaf in enumerate(leaves(workload.inputs))]
    targets = [(f"targets.{place}", leaf) for place, leaf in enumerate(leaves(workload.targets))]
    weights = data.digest(data.named_tensors(workload.module))
    if name in OF_ITS_PYTHON:
        return {"weights": weights}
    return {"weights": weights, "inputs": data.digest(iter(inputs)), "targets": data.digest(iter(targets))}


def main() -> None:
    recorded = {
        preset: {f"{name} v{index.WORKLOADS[name].version}": digests(name, preset) for name in NAMES}
        for preset in ("tiny", "small")
    }
    DIGESTS.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
