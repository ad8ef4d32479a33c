"""Has worker processes measure what devices attain at best, a fresh one for each operation and dtype."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.labels import few
from ampbench.planning import DEVICES, default_device
from ampbench.precisions import SHORT_DTYPES
from ampbench.records.environments import DeviceDescription, Environment
from ampbench.records.requests import Request
from ampbench.records.runs import CEILINGS, Asked, Footer, Header, Selection, Settings
from ampbench.records.studies import COPY, OPERATIONS, Ceiling
from ampbench.running.channel import Channel, OpenChannel, ServerChannel
from ampbench.running.session import check_same, default_memory_limit, new_header, now, opened_first
from ampbench.store import RunWriter, StoredRun
from ampbench.studied.ceilings import DTYPES, FP32, TF32

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


@dataclass(frozen=True, slots=True)
class PreparedCeilings:
    """Ceilings that are planned: what is where, what to measure, and the channels that will."""

    settings: Settings
    asked: Asked
    environment: Environment
    pieces: list[Piece]
    open_channel: OpenChannel


Watch = Callable[[Piece, Ceiling | None], None]
"""Told of each piece twice: before it is measured (None) and after, before it is stored."""


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


@contextmanager
def prepare_ceilings(
    selection: Selection,
    settings: Settings,
    asked: Asked,
    begun: StoredRun | None = None,
    open_channel: OpenChannel = ServerChannel,
) -> Iterator[PreparedCeilings]:
    """Plan which ceilings to measure: of the devices of `selection`, of the accelerator, else the CPU, if it has none.

    With `begun`, those that this run lacks. Raises `UnknownNameError` for a device that there is not,
    `NothingToRunError` with the reasons where nothing can be measured, `UsageError` where `begun` is of another
    environment.
    """
    for name in selection.devices:
        if name not in DEVICES:
            raise UnknownNameError("device", name, DEVICES)
    with opened_first(open_channel, settings.threads) as first:
        environment = first.environment
        if begun is not None:
            check_same(begun.header.environment, environment, begun.header.run)
        if settings.memory_limit_bytes is None:
            settings = dataclasses.replace(settings, memory_limit_bytes=default_memory_limit())
        pieces = planned_pieces(environment, selection.devices, asked)
        if all(piece.lacking for piece in pieces):
            why = few((piece.lacking for piece in pieces), len(pieces)) or f"copies in {TF32} are those in {FP32}"
            raise NothingToRunError(f"no ceiling can be measured here: {why}")
        if begun is not None:
            pieces = missing(pieces, begun)
        yield PreparedCeilings(settings, asked, environment, pieces, first.open_channel)


def planned_pieces(environment: Environment, devices: Sequence[str], asked: Asked) -> list[Piece]:
    """Return the ceilings that are asked for, those that the devices lack among them if they were named."""
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


def missing(pieces: Sequence[Piece], begun: StoredRun) -> list[Piece]:
    """Return those of `pieces` that a run has no ceiling for."""
    done = {(found.device, found.operation, found.dtype) for found in begun.ceilings}
    return [piece for piece in pieces if (piece.device, piece.operation, piece.dtype) not in done]


def is_unfinished(begun: StoredRun) -> bool:
    """Return whether a run lacks ceilings that it was asked for."""
    asked = begun.header.asked or Asked()
    return bool(missing(planned_pieces(begun.header.environment, begun.header.selection.devices, asked), begun))


def measure_ceilings(prepared: PreparedCeilings, writer: RunWriter, watch: Watch) -> str:
    """Measure what is planned, every ceiling to `writer` at once, and return how the session ended.

    A worker that does not live to answer leaves a ceiling with the reason. An interruption ends the session with a
    footer that says so; nothing measured is lost.
    """
    ended = "interrupted"
    channel: Channel | None = None
    try:
        for piece in prepared.pieces:
            watch(piece, None)
            if not piece.lacking and channel is None:
                channel = prepared.open_channel()
            found, killed = _measure(channel, piece, prepared)
            watch(piece, found)
            writer.append(found)
            if killed and channel is not None:
                channel.close()
                channel = None
        ended = "complete"
    except KeyboardInterrupt:
        pass
    finally:
        if channel is not None:
            channel.close()
        writer.append(Footer(ended=ended, finished_at=now()))
    return ended


def new_ceilings_header(
    prepared: PreparedCeilings, selection: Selection, command: list[str], label: str = ""
) -> Header:
    """Return the header of a new run that measures ceilings."""
    header = new_header(selection, prepared.settings, prepared.environment, [], label, command)
    return dataclasses.replace(header, explains=CEILINGS, asked=prepared.asked)


def _measure(channel: Channel | None, piece: Piece, prepared: PreparedCeilings) -> tuple[Ceiling, bool]:
    """Return a ceiling, and whether the worker was killed."""
    failed = Ceiling(
        device=piece.device,
        operation=piece.operation,
        dtype=piece.dtype,
        threads=prepared.settings.threads or prepared.environment.threads or 0,
        error=piece.lacking,
    )
    if channel is None or piece.lacking:
        return failed, False
    settings = prepared.settings
    reply = channel.serve(
        Request(
            kind="ceiling",
            device=piece.device,
            operation=piece.operation,
            dtypes=[piece.dtype],
            seconds=prepared.asked.seconds,
            threads=settings.threads,
            timeout_seconds=settings.timeout_seconds,
            memory_limit_bytes=settings.memory_limit_bytes,
        )
    )
    if reply.ceiling is not None:
        return reply.ceiling, False
    failure = reply.failure
    why = f"{failure.cause}: {failure.message}" if failure else reply.problem or "the worker gave no ceiling"
    return dataclasses.replace(failed, error=why), failure is not None and failure.cause == "killed"


def _lacking(device: DeviceDescription, dtype: str) -> str:
    """Return why a device cannot be measured in `dtype`, or nothing."""
    if not device.available:
        return f"{device.type} is not available: {device.reason}"
    if dtype == TF32 and not device.tf32:
        return f"{device.type} has no tf32"
    if device.arithmetic.get(dtype) == "unavailable" or (dtype == "fp64" and not device.float64):
        return f"{device.type} does not support {dtype}"
    return ""
