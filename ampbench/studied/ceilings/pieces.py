"""Which ceilings a study is asked for, one by one, which of them a run lacks and which could not be measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.errors import UnknownNameError
from ampbench.planning import default_device
from ampbench.precisions import SHORT_DTYPES
from ampbench.records.environments import DeviceDescription, Environment
from ampbench.records.runs import Asked
from ampbench.records.studies import COPY, OPERATIONS, TF32, Ceiling
from ampbench.store import StoredRun
from ampbench.studied.ceilings.rates import DTYPES

DEFAULT_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "fp64")
"""What is measured where no dtype is asked for, if the device has it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One ceiling to measure; `lacking` says why the device cannot."""

    device: str
    operation: str
    dtype: str
    lacking: str = ""

    @property
    def named(self) -> str:
        """What it is, in a word or three: "matmul bf16 cpu"."""
        return f"{self.operation} {self.dtype} {self.device}"


def chosen_operations(given: Sequence[str]) -> list[str]:
    """Return the operations named, each once, all if none is; `UnknownNameError` for another."""
    for name in given:
        if name not in OPERATIONS:
            raise UnknownNameError("operation", name, OPERATIONS)
    return list(dict.fromkeys(given or OPERATIONS))


def chosen_ceiling_dtypes(given: Sequence[str]) -> list[str]:
    """Return the dtypes named by their short or long names ("bf16", "bfloat16"), each once; none if none is.

    `UnknownNameError` for another.
    """
    names = {dtype: dtype for dtype in DTYPES} | SHORT_DTYPES
    for name in given:
        if name not in names:
            raise UnknownNameError("dtype", name, names)
    return list(dict.fromkeys(names[name] for name in given))


def pieces_of(environment: Environment, devices: Sequence[str], asked: Asked) -> list[Piece]:
    """Return the ceilings that are asked for, those that the devices lack among them if they were named.

    Without `devices`, those of the accelerator, else of the CPU.
    """
    pieces = []
    for type in dict.fromkeys(devices or [default_device(environment)]):
        device = environment.device(type) or DeviceDescription(type=type, available=False, reason="unknown to torch")
        for operation in chosen_operations(asked.operations):
            for dtype in asked.dtypes or DEFAULT_DTYPES:
                lacking = _lacking(device, dtype)
                named = asked.dtypes or not device.available
                if (operation, dtype) != (COPY, TF32) and (named or not lacking):
                    pieces.append(Piece(type, operation, dtype, lacking))
    return pieces


def unfinished(stored: StoredRun) -> list[Piece]:
    """Return the ceilings that a run was asked for and says nothing of; one with an error is not tried again."""
    done = {(found.device, found.operation, found.dtype) for found in stored.ceilings}
    return [piece for piece in _pieces(stored) if (piece.device, piece.operation, piece.dtype) not in done]


def failed(stored: StoredRun) -> list[Ceiling]:
    """Return the ceilings of a run that could not be measured although their device has the dtype."""
    wrong = [found for found in stored.ceilings if found.error]
    pieces = _pieces(stored) if wrong else []
    lacking = {(piece.device, piece.operation, piece.dtype) for piece in pieces if piece.lacking}
    return [found for found in wrong if (found.device, found.operation, found.dtype) not in lacking]


def _pieces(stored: StoredRun) -> list[Piece]:
    header = stored.header
    return pieces_of(header.environment, header.selection.devices, header.asked or Asked())


def _lacking(device: DeviceDescription, dtype: str) -> str:
    """Return why a device cannot be measured in `dtype`, or nothing."""
    if not device.available:
        return f"{device.type} is not available: {device.reason}"
    if dtype == TF32 and not device.tf32:
        return f"{device.type} has no tf32"
    if device.arithmetic.get(dtype) == "unavailable" or (dtype == "fp64" and not device.float64):
        return f"{device.type} does not support {dtype}"
    return ""
