"""Libraries' networks by name, as workloads: built from their definition, never downloaded, and made benign.

A library's module lists its names and, for each, how to make and feed the network (`Named`); the common part is here.
Weights are the library's own initialisation under the seed, or those of a file. Untrained networks are not fit to be
judged: a head that starts at zero gives outputs of zero, branches that start switched off (layer scale, the last
normalisation of a block) leave most of the network out, and running statistics of zero and one let signals grow or fade
with depth. So weights of layers that are (nearly) zero are drawn, such scales become `SCALE`, and running statistics
come from a batch. What a new batch normalisation gives to an activation is shifted by `ACTIVE`, as in
`ampbench.workloads.weights`: else each ReLU amplifies rounding errors, and a ResNet-50 in bf16 is 30% off where a
trained one is 1% off. All depends on nothing but library, parameters and seed: statistics are found in fp64 and rounded
to `BITS`, so that digests are equal on every machine.
"""

import contextlib
import fnmatch
import mmap
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ampbench.errors import UnknownNameError, WorkloadError, first_line
from ampbench.records.case import ParameterValue
from ampbench.records.labels import few
from ampbench.records.wire import Description, NamedNetwork
from ampbench.worker.data import Generator, called_with, placed
from ampbench.worker.step import seed_all
from ampbench.workload import Workload
from ampbench.workloads.index import LIMITS, RANDOM, check_parameter
from ampbench.workloads.weights import ACTIVE, class_loss

VERSION = 1
"""The version of all networks by name; increased when the made networks change."""

SCALE = 0.25
"""What a branch is scaled by that its library begins with (nearly) switched off: a trained one's order of magnitude."""
SWITCHED_OFF = 1e-2
"""Scales that are all the same number, this or less, are a beginning and not a choice; and so are weights whose RMS is
this share, or less, of fan_in^-0.5."""
_SCALES = re.compile(r"gamma|scale|lambda|gain|alpha|weight")

CALIBRATED = 2
"""Samples of the batch whose statistics a normalisation runs with, whatever the batch that is measured."""
BITS = 8
"""Significant bits of running statistics: the rounding of fp64 sums, which differs by machine, is far below them."""

STEADY = 2
"""A mean is at most so many deviations: those of convolutions in the networks tried are mostly below. Of 7 networks
the worst is 42% off in bf16 autocast where 8 are allowed, 18% with 4, 4% with 2."""

_MODULE = "module."
_NESTED = ("state_dict", "model_state_dict", "model", "module", "network")
"""Keys under which programs save a state dict."""

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A network of a library, not built: what it does, its `defaults` in a preset, and how to `make` and `feed` it.

    `make` returns the module for some parameters, `feed` the fields of its `Workload` but the module, its inputs among
    them, drawn so that a batch is the beginning of a larger one. `images`: its inputs are images of four dimensions;
    `trains`: it has a loss. `unavailable` is why it cannot be built here.
    """

    task: str
    defaults: Mapping[str, int]
    make: Callable[[Parameters], nn.Module]
    feed: Callable[[Generator, Parameters], Mapping[str, Any]]
    images: bool = True
    trains: bool = True
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Library:
    """The networks of the package `name`: `tasks` has all names with their tasks, `find` one of them by a preset.

    Where `find` is not `quick`, lists omit its details.
    """

    name: str
    tasks: Callable[[], Mapping[str, str]]
    find: Callable[[str, str], Named]
    quick: bool = True

    def describe(self, asked: str, parameters: Mapping[str, ParameterValue], preset: str) -> Description:
        """Return what the network `asked` for is with `parameters`, or which ones a pattern names; nothing is built.

        With a `preset`, what a pattern names has its parameters, too. Raises `UnknownNameError`, with the nearest
        names, for a name that the library has not and a parameter that the network has not, and `WorkloadError` for a
        file of weights that does not fit.
        """
        tasks = self.tasks()
        names = fnmatch.filter(tasks, asked)
        if not names and asked.partition(".")[0] in tasks:  # timm separates weights by the suffix after a point
            names = [asked]
        if not names:
            lists = f"ampbench list workloads {self.name}: lists them"
            raise UnknownNameError(f"network of {self.name}", asked, list(tasks), asked.strip("*?"), lists)
        sized = self.quick and bool(preset) and names != [asked]
        networks = tuple(
            NamedNetwork(
                name=name,
                task=tasks[name.partition(".")[0]],
                parameters=dict(self._network(name, preset).defaults) if sized else None,
            )
            for name in names
        )
        nothing = Description(
            parameters={}, has_loss=True, items_per_step=0.0, version=VERSION, channels_last=False, networks=networks
        )
        if names != [asked]:
            return nothing
        named = self._network(asked, preset)
        if named.unavailable:
            return structs.replace(nothing, unavailable=named.unavailable)
        settled: dict[str, ParameterValue] = {"weights": RANDOM, **named.defaults}
        called = f"{self.name}:{asked}"
        for key, value in parameters.items():
            if key not in settled:
                raise UnknownNameError(f"parameter of {called}", key, settled)
            settled[key] = str(value) if key == "weights" else check_parameter(called, key, value, LIMITS[key])
        if settled["weights"] != RANDOM:
            with offline(), torch.device("meta"):
                module = named.make(settled)
            file = Path(str(settled["weights"]))
            fitting(called, module, read_weights(file), file)
        return structs.replace(
            nothing, parameters=settled, has_loss=named.trains, channels_last=named.images, items_per_step=1.0
        )

    def build(self, name: str, parameters: Parameters, seed: int) -> Workload:
        """Return the workload of a network with all its parameters; `WorkloadError` where it cannot be built."""
        named = self._network(name, "")
        called = f"{self.name}:{name}"
        generator = self._generator(name, parameters, seed)
        seed_all(seed)
        try:
            with offline():
                module = named.make(parameters)
                drop_nothing(module)
                if parameters["weights"] == RANDOM:
                    key = f"{called} {sorted(parameters.items() - {('batch_size', parameters['batch_size'])})} {seed}"
                    few_samples = {**parameters, "batch_size": CALIBRATED}
                    make_benign(module, generator, lambda: named.feed(generator, few_samples)["inputs"], key)
                else:
                    load_weights(called, module, Path(parameters["weights"]))
                fed = named.feed(generator, parameters)
        except WorkloadError:
            raise
        except Exception as error:
            raise WorkloadError(f"{called} cannot be built: {first_line(error)}") from error
        return Workload(module=module, version=VERSION, **fed)

    def batch(self, name: str, parameters: Parameters, seed: int) -> tuple[Any, Any]:
        """Return the inputs and targets that `build` gives a network, which is not built."""
        fed = self._network(name, "").feed(self._generator(name, parameters, seed), parameters)
        return fed["inputs"], fed.get("targets")

    def _network(self, name: str, preset: str) -> Named:
        with offline():
            return self.find(name, preset or "small")

    def _generator(self, name: str, parameters: Parameters, seed: int) -> Generator:
        numbers = {key: value for key, value in parameters.items() if key != "weights"}
        return Generator(f"{self.name}:{name}", VERSION, numbers, seed)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Forbid libraries to download, and hide their warnings: a missing file raises at once."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    hub = sys.modules.get("huggingface_hub.constants")  # which has read the variables, if imported
    switched = getattr(hub, "HF_HUB_OFFLINE", None)
    if hub is not None:
        hub.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if hub is not None:
            hub.HF_HUB_OFFLINE = switched  # type: ignore[attr-defined]
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def drop_nothing(module: nn.Module) -> None:
    """Set every probability of dropping something to zero: masks would differ between precisions.

    This covers dropout layers and module numbers with "drop" in their name: for whole branches (stochastic depth, drop
    path), in attention, between recurrent layers.
    """
    for layer in module.modules():
        named_p = isinstance(layer, _DropoutNd) or type(layer).__name__ == "StochasticDepth"
        for name, value in vars(layer).items():
            if isinstance(value, float) and ("drop" in name or (named_p and name == "p")):
                setattr(layer, name, 0.0)


def make_benign(module: nn.Module, generator: Generator, inputs: Callable[[], Any], key: str) -> None:
    """Make a new network like a trained one, as this module describes; `inputs` are a small batch.

    Statistics are found once for all processes that are forked of this one's server, by the `key` of the network.
    """
    owners = {id(part): layer for layer in module.modules() for part in layer.parameters(recurse=False)}
    with torch.no_grad():
        for name, weight in module.named_parameters():
            layer = owners[id(weight)]
            if weight.ndim > 1 and isinstance(layer, _WEIGHTED) and name.endswith("weight"):
                size = weight[0].numel() ** -0.5
                if float(weight.norm()) <= SWITCHED_OFF * size * weight.numel() ** 0.5:
                    weight.copy_(generator.uniform(name, tuple(weight.shape), rms=size))
            elif _is_switched_off(name, weight):
                weight.fill_(SCALE)
        for layer in module.modules():
            if isinstance(layer, _BatchNorm) and layer.bias is not None and not layer.bias.any():
                layer.bias.fill_(ACTIVE)
    running = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.running_mean is not None]
    if not running:
        return
    known = kept_statistics(key)
    if known is None:
        known = [(mean.numpy(), variance.numpy()) for mean, variance in _statistics(module, running, inputs())]
        keep_statistics(key, known)
    for layer, (mean, variance) in zip(running, known, strict=True):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(torch.from_numpy(mean))
        layer.running_var.copy_(torch.from_numpy(variance))


_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _is_switched_off(name: str, weight: Tensor) -> bool:
    """Return whether a parameter scales a branch, channel by channel, by one number that is next to nothing."""
    if max(weight.shape, default=1) != weight.numel() or not weight.numel():
        return False
    last = name.rpartition(".")[2]
    first = float(weight.flatten()[0])
    named = last.startswith("ls") or _SCALES.search(last)
    return bool(named) and abs(first) <= SWITCHED_OFF and bool((weight == first).all())


def _statistics(module: nn.Module, running: Iterable[_BatchNorm], inputs: Any) -> list[tuple[Tensor, Tensor]]:
    """Return mean and variance of what each layer of `running` normalises in one forward pass, in fp64 if that runs."""
    layers = list(running)
    momenta = [layer.momentum for layer in layers]
    counted = [layer.num_batches_tracked.clone() for layer in layers if layer.num_batches_tracked is not None]
    before = module.training
    for layer in layers:
        layer.momentum = 1.0
    module.train()
    try:
        for dtype in (torch.float64, torch.float32):
            positional, by_name = called_with(placed(inputs, dtype, {}, channels_last=False))
            with torch.no_grad(), contextlib.suppress(Exception):
                module.to(dtype)(*positional, **by_name)
                return [_settled_statistics(layer) for layer in layers]
        return [(torch.zeros(layer.num_features), torch.ones(layer.num_features)) for layer in layers]
    finally:
        module.float().train(before)
        for layer, momentum_of in zip(layers, momenta, strict=True):
            layer.momentum = momentum_of
        for layer, count in zip(
            (norm for norm in layers if norm.num_batches_tracked is not None),
            counted,
            strict=True,
        ):
            assert layer.num_batches_tracked is not None
            layer.num_batches_tracked.copy_(count)


def _settled_statistics(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return mean and variance that a layer has found, in fp32: the variance to `BITS`, the mean to as small a share of
    the deviation. That is 1 / `STEADY` of the mean at least: what hardly differs from sample to sample, as the pooled
    features of noise do, would else be magnified, and rounding errors with it.
    """
    assert layer.running_mean is not None
    assert layer.running_var is not None
    mean, variance = layer.running_mean.double(), layer.running_var.double()
    fraction, exponent = torch.frexp(torch.maximum(variance, (mean / STEADY).square()))
    variance = torch.ldexp((fraction * 2**BITS).round(), exponent - BITS)
    step = torch.ldexp(torch.ones_like(mean), torch.frexp((variance + layer.eps).sqrt()).exponent - BITS)
    return ((mean / step).round() * step).float(), variance.float()


_KEPT = mmap.mmap(-1, 1 << 25)
"""The running statistics of one network, which a process shares with all that are forked of it: a server measures one
network after the other. The largest networks have some hundred kilobytes; eight bytes hold the length."""


def kept_statistics(key: str) -> Any:
    """Return the statistics from the last `keep_statistics`, None for another key."""
    length = int.from_bytes(_KEPT[:8], "little")
    known, statistics = pickle.loads(_KEPT[8 : 8 + length]) if length else ("", None)
    return statistics if known == key else None


def keep_statistics(key: str, statistics: Any) -> None:
    """Keep the statistics of a network in place of the network before, unless they are larger than the memory."""
    record = pickle.dumps((key, statistics))
    _KEPT[:8] = bytes(8)
    if 8 + len(record) <= len(_KEPT):
        _KEPT[8 : 8 + len(record)] = record
        _KEPT[:8] = len(record).to_bytes(8, "little")  # last: a writer may be killed


SAVE_WEIGHTS = "save the network's state_dict() with torch.save, or with safetensors"


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or a state dict, by name; no code in it is run.

    Raises `WorkloadError` for anything else.
    """
    if not file.is_file():
        raise WorkloadError(f"weights={file}: there is no such file")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except ModuleNotFoundError:
        raise WorkloadError(f'weights={file}: safetensors is missing: pip install "ampbench[transformers]"') from None
    except pickle.UnpicklingError:
        raise WorkloadError(f"weights={file} holds pickled code, and ampbench never runs it: {SAVE_WEIGHTS}") from None
    except Exception as error:
        raise WorkloadError(f"weights={file} cannot be read ({first_line(error)}): {SAVE_WEIGHTS}") from error
    while isinstance(content, Mapping) and (
        inner := next((part for part in _NESTED if isinstance(content.get(part), Mapping)), "")
    ):
        content = content[inner]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(part, Tensor) for part in content.values())
    ):
        raise WorkloadError(f"weights={file} holds no state dict: {SAVE_WEIGHTS}")
    if all(name.startswith(_MODULE) for name in content):  # of DistributedDataParallel
        content = {name.removeprefix(_MODULE): part for name, part in content.items()}
    return dict(content)


def fitting(called: str, module: nn.Module, held: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Return a file's tensors for a network; `WorkloadError` names missing, unexpected and misshapen ones."""
    needed = module.state_dict(keep_vars=True)
    shared: dict[int, list[str]] = {}
    for name, tensor in needed.items():
        shared.setdefault(id(tensor), []).append(name)
    missing = [
        name
        for name, tensor in needed.items()
        if name not in held
        and not any(alias in held for alias in shared[id(tensor)])
        and not name.endswith("num_batches_tracked")
    ]
    unexpected = [name for name in held if name not in needed]
    misshapen = [name for name, tensor in held.items() if name in needed and needed[name].shape != tensor.shape]
    problems = []
    if missing:
        problems.append(f"{len(missing):,} missing ({few(missing)})")
    if unexpected:
        problems.append(f"{len(unexpected):,} unexpected ({few(unexpected)})")
    if misshapen:
        shapes = [f"{name} {tuple(held[name].shape)} for {tuple(needed[name].shape)}" for name in misshapen]
        problems.append(f"{len(misshapen):,} of another shape ({few(shapes)})")
    if problems:
        raise WorkloadError(f"weights={file} do not fit {called}: {'; '.join(problems)}")
    return {name: held[name] for name in needed if name in held}


def load_weights(called: str, module: nn.Module, file: Path) -> None:
    """Give a network the weights and buffers of a file, in fp32; raises as `read_weights` and `fitting`."""
    module.load_state_dict(fitting(called, module, read_weights(file), file), strict=False)


def classified_images(
    generator: Generator, parameters: Parameters, channels: int = 3, **further: Any
) -> dict[str, Any]:
    """Return the inputs and targets of an image classifier, `image` pixels a side, with `further` fields."""
    size = (parameters["batch_size"], channels, parameters["image"], parameters["image"])
    return {
        "inputs": generator.uniform("inputs", size),
        "targets": generator.integers("targets", size[:1], parameters["classes"]),
        "loss": class_loss,
        "items_per_step": parameters["batch_size"],
    } | further
