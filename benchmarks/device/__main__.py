"""`python -m benchmarks.device PART --device cuda --out FOLDER`: a part of the proof, all of them, or their summary.

Runs from the source tree with a Python that has torch; packages that it lacks come from a folder of wheels
(`make device-wheels`), which are unpacked for as long as it runs and never installed. Exit code 0: nothing failed, 3:
something did, 2: it was not meant.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.device import running, wheels
from benchmarks.device.parts import EVERY, PARTS

ALL, GATHER = "all", "gather"


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device", description="The whole proof for an accelerator, part by part.",
        epilog="Parts: " + "; ".join(f"{part.name}: {part.proves}" for part in EVERY.values()),
    )  # fmt: skip
    parser.add_argument("part", choices=[*EVERY, ALL, GATHER], metavar="PART", help=f"{', '.join(EVERY)}, {ALL}; "
                        f"{GATHER} makes one summary of packed parts")  # fmt: skip
    parser.add_argument("packed", nargs="*", type=Path, help=f"with {GATHER}: the tar.gz files of parts")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda", "xpu"), help="default: cuda")
    parser.add_argument("--out", type=Path, default=Path("device-proof"), help="the folder (default: device-proof)")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: small presets, fewer steps")
    parser.add_argument("--patience", type=float, default=1, help="limits so many times as long, on a busy machine")
    parser.add_argument("--pack", action="store_true", help="leave one tar.gz a part, the summary beside it")
    parser.add_argument("--wheels", type=Path, default=wheels.FOLDER, help=f"default: {wheels.FOLDER.name}")
    given = parser.parse_args(arguments)
    if bool(given.packed) != (given.part == GATHER):
        parser.error(f"{GATHER} takes the packed parts, and only it does")
    absent = [str(path) for path in given.packed if not path.is_file()]
    if absent:
        parser.error(f"there is no file {absent[0]}")
    return given


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked; return the exit code."""
    given = _asked(arguments)
    if given.part == GATHER:
        running.gather(given.packed, given.out)
    else:
        given.out.mkdir(parents=True, exist_ok=True)
        names = [part.name for part in PARTS] if given.part == ALL else [given.part]
        with wheels.unpacked(given.wheels) as paths:
            for name in names:
                _part(name, given, paths)
    print(f"summary: {given.out / 'summary.md'}")
    return 3 if running.counts(running.stored_parts(given.out))[running.FAILED] else 0


def _ended(number: int, _: object) -> None:
    """End as Ctrl-C does: the item is ended, and what there is is packed."""
    raise SystemExit(128 + number)


def _part(name: str, given: argparse.Namespace, paths: list[Path]) -> None:
    if not given.pack:
        running.run_part(EVERY[name], given.device, given.out, quick=given.quick, patience=given.patience, paths=paths)
        return
    with tempfile.TemporaryDirectory(prefix="ampbench-device-") as made:
        folder = Path(made)
        try:
            running.run_part(EVERY[name], given.device, folder, quick=given.quick, patience=given.patience, paths=paths)
        finally:  # what there is, where it is ended from outside
            left_out = running.pack(folder, given.out / f"{name}.tar.gz")
            for file in left_out:
                print(f"{name}: left out of the packed part, which would be too large: {file}")
            for file in folder.glob("part-*.json"):
                shutil.copy(file, given.out)
            running.write_summary(given.out)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)
    sys.exit(main())
