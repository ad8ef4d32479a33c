"""Errors of ampbench; each message is one line with the problem and its remedy.

AmpbenchError
├── UsageError              exit 2: the caller named or gave something that cannot be used
│   ├── UnknownNameError    exit 2: an unknown name, with the nearest known ones
│   ├── WorkloadError       exit 2: a workload cannot be imported, built, or returned the wrong thing
│   └── StoreError          exit 2: a results folder or file cannot be read or written
├── NothingComparableError  exit 4: two runs have no case in common
└── NothingToRunError       exit 5: nothing selected, or nothing could run
"""

import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

CASE_FAILED, INTERNAL_ERROR, INTERRUPTED = 3, 70, 130
"""Exit codes without an error class: a case failed or a file is damaged, ampbench itself failed, Ctrl-C."""


class AmpbenchError(Exception):
    """The base of all errors meant for a user, with the exit code of the command."""

    exit_code = INTERNAL_ERROR


class UsageError(AmpbenchError):
    """The caller named or gave something that cannot be used."""

    exit_code = 2


LONGEST_NAME = 200
"""The most characters of a typed name in a message."""


MOST_KNOWN = 20
"""The most known names in a message, if none is near to the typed one."""


class UnknownNameError(UsageError):
    """An unknown name of a `kind` of thing (such as "workload"), with the nearest of the `known` names.

    `like` replaces the name in the search for near ones. `instead` replaces the list of known names if none is near.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], like: str = "", instead: str = ""):
        names, name = list(known), bounded(name, LONGEST_NAME)
        more = len(names) - MOST_KNOWN
        if near := nearest(like or name, names):
            hint = did_you_mean(near)
        elif instead:
            hint = instead
        elif names:
            hint = f"known: {', '.join(names[:MOST_KNOWN])}" + (f" and {more:,} more" if more > 0 else "")
        else:
            hint = "there is none"
        super().__init__(f"unknown {kind} {name!r}: {hint}")


_MEANT = {
    "gpu": ("cuda", "xpu"),
    "nvidia": ("cuda",),
    "intel": ("xpu",),
    "rocm": ("cuda",),
    "hip": ("cuda",),
    "huggingface": ("transformers",),
    "hf": ("transformers",),
}
"""Names that people use for devices and libraries with other names here."""


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return at most three names of `known` that `name` may mean.

    They begin with it, else are nearest to it, else begin with something near to it: bf16_pure, for bf61.
    """
    if meant := [candidate for candidate in _MEANT.get(name.lower(), ()) if candidate in known]:
        return meant
    longer = [candidate for candidate in known if name and candidate.startswith(name)]
    similar = get_close_matches(name, known, n=6, cutoff=0.5)
    if near := longer or [candidate for candidate in similar if candidate[0] == name[0]] or similar:
        return near[:3]
    beginnings = get_close_matches(name, {candidate[: len(name)] for candidate in known} - {""}, n=1, cutoff=0.7)
    return [candidate for candidate in known if candidate.startswith(tuple(beginnings))][:3]


def did_you_mean(near: Sequence[str]) -> str:
    """Return "did you mean a, b or c?"."""
    several = f"{', '.join(near[:-1])} or " if near[1:] else ""
    return f"did you mean {several}{near[-1]}?"


class WorkloadError(UsageError):
    """A workload that cannot be imported or built, or that returned something outside the contract."""


class StoreError(UsageError):
    """A results folder or file that cannot be read or written."""


class NothingComparableError(AmpbenchError):
    """Two runs have no case in common."""

    exit_code = 4


class NothingToRunError(AmpbenchError):
    """Nothing was selected, or nothing of what was selected can run here."""

    exit_code = 5


LONGEST_TEXT = 2000
"""The most characters kept of a text from a user's code: an exception, a frame, a line."""


def bounded(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return `text`, cut after `longest` characters with the number of further ones."""
    left = len(text) - longest
    return text if left <= 0 else f"{text[:longest]}… ({left:,} more characters)"


def escaped(value: Any) -> Any:
    """Return `value`, a tree of JSON types, with backslash escapes for characters outside UTF-8 (undecodable bytes)."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list | tuple) else value


def written_out(text: str, keep: str = "") -> str:
    """Return `text` with unprintable characters, unless in `keep`, escaped as in Python (`\\x1b`).

    Control characters command a terminal, line breaks begin lines of ours, others turn the direction of writing.
    """
    if text.isprintable():
        return text
    characters = (
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )
    return "".join(characters)


def text_of(error: BaseException) -> str:
    """Return the message of `error`, also if its `__str__` raises."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001 - a user's exception may raise anything
        return f"what it says cannot be had, because its __str__ raises {type(raised).__name__}"


def first_line(error: BaseException) -> str:
    """Return "RuntimeError: message" with the first line of the message, the last one for TorchScript's interpreter."""
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    if lines and "TorchScript interpreter" in lines[0]:
        lines = lines[-1:]
    return written_out(bounded(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__))


def in_one_line(error: BaseException) -> str:
    """Return "RuntimeError: message" in one line; the message alone for an `AmpbenchError`."""
    text = " ".join(text_of(error).split()) or "no message"
    return written_out(bounded(text if isinstance(error, AmpbenchError) else f"{type(error).__name__}: {text}"))


def is_interruption(error: BaseException) -> bool:
    """Return whether an error is, or was caused by, an interrupt (Ctrl-C).

    Python before 3.12 replaces an exception in `__set_name__`, which dataclasses call, by a RuntimeError: an interrupt
    during an import would look like a bug.
    """
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback in the code of a user or of a built-in workload."""
    ours = Path(__file__).parent
    libraries = [
        sysconfig.get_path("stdlib"),
        *(str(ours / part) for part in ("worker", "trace", "studies")),
    ]
    if torch := sys.modules.get("torch"):
        libraries.append(str(Path(str(torch.__file__)).parent))
    inside = (*libraries, "<frozen", "<string>", "<eval")
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(inside)
        and not {"site-packages", "dist-packages"} & {*Path(frame.filename).parts}
    ]


PARTS = {"self.loss(": "in the loss", ".backward()": "in the backward pass", ".step(": "in the optimizer's step"}
"""The parts of a step by the calls in the worker's code; the rest is the network's forward pass."""


def own_place(error: BaseException) -> str:
    """Return " (in the loss, model.py, line 12)": the part of a step, and the innermost of the `own_frames`."""
    worker = str(Path(__file__).parent / "worker")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(worker)]
    parts = [part for frame in frames for call, part in PARTS.items() if call in (frame.line or "")][-1:]
    parts += [f"{Path(frame.filename).name}, line {frame.lineno}" for frame in own_frames(error)[-1:]]
    return f" ({', '.join(parts)})" if parts else ""
