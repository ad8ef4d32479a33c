"""Which checks a run has and lacks: each program is run by a worker of its own, which may crash."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ampbench.defects.catalogue import CHECKS, program_of
from ampbench.defects.check import AREAS, Check
from ampbench.drive.pieces import Piece
from ampbench.drive.servers import Channel
from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.instruments.check.records import NOT_SHOWN, CheckAsked, Checked, ChecksAsked, digest_of
from ampbench.records.case import DEVICES, Environment
from ampbench.records.kinds import CHECK
from ampbench.records.measured import KILLED, Failure
from ampbench.records.rules import NOT_OBSERVED
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import StoredRun
from ampbench.studies.study import Instrument, Session
from ampbench.studies.work import ask_device

PRELOADED = ("torch._dynamo", "torch.distributed.fsdp")
"""What many programs import, which takes longer than they do; each begins as a fork of what has done so."""
TASK = Task(CHECK, CheckAsked, Checked, "ampbench.instruments.check.measure:do_check")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A check on a device; `lacking` says why it cannot be run there."""

    device: str
    check: Check
    lacking: str = ""

    @property
    def named(self) -> str:
        """What it is, in two words: "stale-weight-cast cpu"."""
        return f"{self.check.name} {self.device}"


def asked_of(names: Sequence[str], areas: Sequence[str]) -> ChecksAsked:
    """Return the request for checks by names and areas; raises `UnknownNameError` for one that there is not."""
    for given, known, what in ((names, CHECKS, "check"), (areas, AREAS, "area")):
        for name in given:
            if name not in known:
                raise UnknownNameError(what, name, known)
    return ChecksAsked(checks=list(dict.fromkeys(names)), areas=list(dict.fromkeys(areas)))


def wanted_of(environment: Environment, devices: Sequence[str], asked: ChecksAsked) -> list[Wanted]:
    """Return the checks that are asked for, device by device: by name or area, else all that are not slow.

    Without `devices`, on all types of them; of one that is not here, those that fake tensors answer and those named.
    """
    chosen = [
        check
        for check in CHECKS.values()
        if (check.name in asked.checks or check.area in asked.areas) or not (check.slow or asked.checks or asked.areas)
    ]
    wanted = []
    for device in dict.fromkeys(devices or DEVICES):
        here = environment.device(device)
        present = here is not None and here.available
        for check in chosen:
            if device not in check.devices or not (present or check.fake or (devices and check.name in asked.checks)):
                continue
            lacking = "" if present or check.fake else f"needs a real {device}, and there is none"
            if not lacking and check.compiler and environment.compiler is None:
                lacking = "needs a C++ compiler, and there is none on the PATH (CXX names another)"
            wanted.append(Wanted(device, check, lacking))
    return wanted


def unfinished(stored: StoredRun) -> list[Wanted]:
    """Return the checks that a run was asked for and says nothing of."""
    done = {(found.device, found.check) for found in stored.every(Checked)}
    header = stored.header
    wanted = wanted_of(header.environment, header.selection.devices, stored.asked or ChecksAsked())
    return [one for one in wanted if (one.device, one.check.name) not in done]


def _require(selection: Selection, asked: ChecksAsked, environment: Environment) -> None:
    """Raise `NothingToRunError` where no check is for the devices that are named."""
    if not wanted_of(environment, selection.devices, asked):
        raise NothingToRunError(f"none of these checks is for {', '.join(selection.devices or DEVICES)}")


def _pieces(session: Session[ChecksAsked]) -> list[Piece]:
    prepared = session.prepared
    found = (
        wanted_of(prepared.environment, prepared.selection.devices, session.asked)
        if session.begun is None
        else unfinished(session.begun)
    )
    return [Piece(one.named, one) for one in found]


def _check(session: Session[ChecksAsked], channel: Channel, piece: Piece) -> Checked:
    return check_on(channel, piece.part, session.prepared.settings)


def check_on(channel: Channel, wanted: Wanted, settings: Settings) -> Checked:
    """Return what a program saw; where its process died, that is what was seen."""
    text = program_of(wanted.check, wanted.device)
    why, cause = wanted.lacking, ""
    if not why:
        asked = CheckAsked(check=wanted.check.name, text=text)
        found = ask_device(channel, wanted.device, settings, TASK, asked)
        if isinstance(found, Checked):
            return found
        why, cause = (found.said, found.cause) if isinstance(found, Failure) else (found, "")
    return Checked(
        device=wanted.device,
        check=wanted.check.name,
        outcome=NOT_SHOWN,
        how=NOT_OBSERVED,
        program=digest_of(text),
        why=why,
        cause=cause,
    )


def killed(stored: StoredRun) -> list[Checked]:
    """Return the checks whose worker somebody else killed, and of which nothing is known: a crash is a result."""
    return [found for found in stored.every(Checked) if found.cause == KILLED]


INSTRUMENT: Instrument[ChecksAsked] = Instrument(
    kind=CHECK,
    doing="checking",
    require=_require,
    preload=PRELOADED,
    pieces=_pieces,
    left=lambda stored: [one.named for one in unfinished(stored)],
    work=lambda session: partial(_check, session),
    failed=lambda stored: len(killed(stored)),
)
