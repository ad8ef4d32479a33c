"""The study of ceilings: what is measured of a device, which ceilings a run lacks, and which are known of this machine.

It has no cases: each operation in each dtype is measured by a worker of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import structs

from ampbench import store
from ampbench.core.precisions import SHORT_DTYPES
from ampbench.drive.pieces import Piece
from ampbench.drive.planning import default_device
from ampbench.drive.servers import Channel
from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.instruments.ceilings.findings import DTYPES, ceiling_rate, disturbance, top
from ampbench.instruments.ceilings.records import (
    COPY,
    FP32,
    MOVING,
    OPERATIONS,
    READ,
    TF32,
    Ceiling,
    CeilingAsked,
    CeilingsAsked,
)
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.kinds import CEILINGS
from ampbench.records.labels import few
from ampbench.records.measured import Failure
from ampbench.records.run import Header, Selection
from ampbench.records.wire import Task
from ampbench.store import StoredRun
from ampbench.studies.study import Given, Instrument, Option, Session
from ampbench.studies.work import ask_device

HELP = """\
Measure what a device attains at best: FLOP/s of products, convolutions and attention, memory bandwidth.

In each dtype, over sizes from small to large, on random values. Says what half precision brings at most on this
machine and, where the device's datasheet is known, what share of its peaks is reached. The run is stored: ampbench
show RUN prints it again, with --all every size.

\b
Examples:
  ampbench study ceilings
  ampbench study ceilings --device cpu --threads 1 --dtype fp32 --dtype bf16
  ampbench study ceilings --operation copy --seconds 500ms --all
"""
TASK = Task(CEILINGS, CeilingAsked, Ceiling, "ampbench.instruments.ceilings.measure:do_ceiling")

DEFAULT_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "fp64")
"""What is measured where no dtype is asked for, if the device has it."""


@dataclass(frozen=True, slots=True)
class Wanted:
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


def wanted_of(environment: Environment, devices: Sequence[str], asked: CeilingsAsked) -> list[Wanted]:
    """Return the ceilings that are asked for, those that the devices lack among them if they were named.

    Without `devices`, those of the accelerator, else of the CPU.
    """
    wanted = []
    for type in dict.fromkeys(devices or [default_device(environment)]):
        device = environment.device(type) or DeviceDescription(type=type, available=False, reason="unknown to torch")
        for operation in chosen_operations(asked.operations):
            for dtype in asked.dtypes or DEFAULT_DTYPES:
                lacking = _lacking(device, dtype)
                named = asked.dtypes or not device.available
                if not _same_as_fp32(operation, dtype) and (named or not lacking):
                    wanted.append(Wanted(type, operation, dtype, lacking))
    return wanted


def _same_as_fp32(operation: str, dtype: str) -> bool:
    """Return whether an operation in `dtype` says no more than in fp32: copies in tf32, and all that only reads."""
    return (operation, dtype) == (COPY, TF32) or (operation == READ and dtype != FP32)


def unfinished(stored: StoredRun) -> list[Wanted]:
    """Return the ceilings that a run was asked for and says nothing of; one with an error is not tried again."""
    done = {(found.device, found.operation, found.dtype) for found in stored.every(Ceiling)}
    return [piece for piece in _wanted(stored) if (piece.device, piece.operation, piece.dtype) not in done]


def failed(stored: StoredRun) -> list[Ceiling]:
    """Return the ceilings of a run that could not be measured although their device has the dtype."""
    wrong = [found for found in stored.every(Ceiling) if found.error]
    pieces = _wanted(stored) if wrong else []
    lacking = {(piece.device, piece.operation, piece.dtype) for piece in pieces if piece.lacking}
    return [found for found in wrong if (found.device, found.operation, found.dtype) not in lacking]


def _wanted(stored: StoredRun) -> list[Wanted]:
    header = stored.header
    return wanted_of(header.environment, header.selection.devices, stored.asked or CeilingsAsked())


def _lacking(device: DeviceDescription, dtype: str) -> str:
    """Return why a device cannot be measured in `dtype`, or nothing."""
    if not device.available:
        return f"{device.type} is not available: {device.reason}"
    if dtype == TF32 and not device.tf32:
        return f"{device.type} has no tf32"
    if device.arithmetic.get(dtype) == "unavailable" or (dtype == "fp64" and not device.float64):
        return f"{device.type} does not support {dtype}"
    return ""


def _require(selection: Selection, asked: CeilingsAsked, environment: Environment) -> None:
    """Raise `NothingToRunError`, with the reasons, where nothing can be measured."""
    wanted = wanted_of(environment, selection.devices, asked)
    if all(one.lacking for one in wanted):
        why = few((one.lacking for one in wanted), len(wanted)) or f"what is only copied or read is measured in {FP32}"
        raise NothingToRunError(f"no ceiling can be measured here: {why}")


def pieces(session: Session[CeilingsAsked]) -> list[Piece]:
    """Return the ceilings to measure, or those that a run begun before lacks."""
    prepared = session.prepared
    found = (
        wanted_of(prepared.environment, prepared.selection.devices, session.asked)
        if session.begun is None
        else unfinished(session.begun)
    )
    return [Piece(one.named, one) for one in found]


def _measure(session: Session[CeilingsAsked], channel: Channel, piece: Piece) -> Ceiling:
    """Return a ceiling; one without anything attained has the reason, as where no worker lived to answer."""
    settings, wanted = session.prepared.settings, piece.part
    asked = CeilingAsked(operation=wanted.operation, dtype=wanted.dtype, seconds=session.asked.seconds)
    found = wanted.lacking or ask_device(channel, wanted.device, settings, TASK, asked)
    if isinstance(found, Ceiling):
        return found
    return Ceiling(
        device=wanted.device,
        operation=wanted.operation,
        dtype=wanted.dtype,
        threads=settings.threads or session.prepared.environment.threads or 0,
        error=found.said if isinstance(found, Failure) else found,
    )


_SAME = ("host", "cpu", "torch_version", "cuda_version", "xpu_version")


def ceilings_known(results: Path | str, here: Environment) -> list[Ceiling]:
    """Return the highest ceiling of each device, operation and dtype in a results folder that holds `here`.

    Whatever else runs on a machine only delays: the highest is the nearest to what it can do. All were measured on the
    same host, CPU or accelerator, with the same torch, and on a CPU with as many threads. Of copies that is one of the
    largest size, as smaller ones may be a cache's. Each names its run, of equals the newest; damaged runs have none.
    One that other work may have lowered is none: shares of it would be too high.
    """
    found: dict[tuple[str, str, str], tuple[tuple[int, float], Ceiling]] = {}
    for stored in _studies(results, here):
        for one in stored.every(Ceiling):
            attained = top(one)
            if attained is None or disturbance(one) is not None or not _holds(one, stored.header, here):
                continue
            key = one.device, one.operation, one.dtype
            height = attained.work if one.operation in MOVING else 0, ceiling_rate(one) or 0.0
            if key not in found or height > found[key][0]:
                found[key] = height, structs.replace(one, run=stored.header.run)
    return [one for _, one in found.values()]


def _studies(results: Path | str, here: Environment) -> Iterator[store.StoredRun]:
    """Return the stored studies of ceilings on this machine, the newest first."""

    def is_its(header: Header) -> bool:
        there = header.environment
        return header.explains == CEILINGS and all(getattr(there, name) == getattr(here, name) for name in _SAME)

    return store.runs_with(reversed(store.list_runs(results)), is_its)


def _holds(ceiling: Ceiling, header: Header, here: Environment) -> bool:
    """Return whether a ceiling is that of the device that is here now, and on a CPU of as many threads."""
    there, now = header.environment.device(ceiling.device), here.device(ceiling.device)
    if there is None or now is None or there.name != now.name:
        return False
    return ceiling.device != "cpu" or ceiling.threads == here.threads


def _made(given: Given) -> CeilingsAsked:
    return CeilingsAsked(
        seconds=given.values["seconds"],
        operations=chosen_operations(given.values["operation"]),
        dtypes=chosen_ceiling_dtypes(given.values["dtype"]),
    )


INSTRUMENT: Instrument[CeilingsAsked] = Instrument(
    kind=CEILINGS,
    help=HELP,
    doing="measuring",
    options=(
        Option(name="operation", default=None, names=True, help="matmul, conv, attention, copy or read. Default: all."),
        Option(
            name="dtype",
            default=None,
            names=True,
            help="fp32, tf32, bf16, fp16 or fp64. Default: all the device has, but fp64.",
        ),
        Option(name="seconds", default="2", seconds=True, help="Timing of each operation in each dtype"),
    ),
    made=_made,
    require=_require,
    pieces=pieces,
    left=lambda stored: [one.named for one in unfinished(stored)],
    work=lambda session: partial(_measure, session),
    failed=lambda stored: len(failed(stored)),
)
