"""Damaged run files, each by its own seed: no verb fails by its own fault, hangs or tells nonsense."""

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampbench.errors import StoreError
from ampbench.judge.frame import load
from ampbench.store import read_run
from tests.cli.conftest import RUN_ID

Run = Callable[..., Any]
Mutation = Callable[[bytes, random.Random], bytes]

FILES, GROUPS = 500 if os.environ.get("AMPBENCH_NIGHT") else 130, 5
SECONDS = 60
"""No verb takes a tenth of that for a file of 50 kB; a loaded machine may."""
DOCUMENTED = {0, 1, 2, 3, 4, 5}

NUMBERS = (
    "-1", "0", "-0.0", "1e308", "-1e308", "5e-324", "1e400", "1e999999", "NaN", "Infinity", "null", "true", '"7"', "[]",
    "{}", "0.5", "1.0000001", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" * 5000, "1e-9",
    "1000000.1", "3", "99999999",
)  # fmt: skip
TEXTS = (
    "", "\\u0000", "\\ud800", "\\u202e", "🚀" * 50, "x" * 20_000, "../../etc", "\\u001b[2J", "<script>", "=1+1", "|",
    "é",
)  # fmt: skip
TIMES = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "yesterday", "", "1970-01-01T00:00:00", "2026-02-30")


def flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 30))):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    return data[:start] if draw.random() < 0.5 else data[:start] + data[start + draw.choice((1, 10, 1000)) :]


def of_lines(change: Callable[[list[bytes], random.Random], object]) -> Mutation:
    def changed(data: bytes, draw: random.Random) -> bytes:
        lines = data.splitlines(keepends=True)
        change(lines, draw)
        return b"".join(lines)

    return changed


def swap(lines: list[bytes], draw: random.Random) -> None:
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def repeat(lines: list[bytes], draw: random.Random) -> None:
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines) * draw.choice((1, 1, 3)))


def drop(lines: list[bytes], draw: random.Random) -> None:
    del lines[draw.randrange(len(lines))]


def nest(lines: list[bytes], draw: random.Random) -> None:
    opening = draw.choice((b"[", b'{"a":', b'{"header":', b'{"round":{"samples":['))
    lines.insert(draw.randrange(len(lines)), opening * draw.choice((10, 5000)) + b"\n")


def replaced(pattern: bytes, others: tuple[str, ...], most: int = 3) -> Mutation:
    def changed(data: bytes, draw: random.Random) -> bytes:
        for _ in range(draw.randint(1, most)):
            found = draw.choice(list(re.finditer(pattern, data)))
            data = data[: found.start(1)] + draw.choice(others).encode() + data[found.end(1) :]
        return data

    return changed


def everywhere(data: bytes, draw: random.Random) -> bytes:
    """Give all fields of one name one value."""
    name = draw.choice(sorted(set(re.findall(rb'"(\w+)":(?=[-\d\[])', data))))
    value = draw.choice(NUMBERS).encode()
    return re.sub(rb'("%s":(?:\[\[)?)[^,\]}]+' % name, lambda found: found[1] + value, data)


def foreign(data: bytes, draw: random.Random) -> bytes:
    return draw.choice(
        (
            b"\xef\xbb\xbf" + data,
            data.decode().encode("utf-16"),
            b"\x1f\x8b" + data,
            b"",
            b"\x00" * 100,
            data + data,
            data.replace(b"\n", b"\r\n"),
            data.replace(b"\n", b""),
            json.dumps(json.loads(data.splitlines()[0])).encode(),
        )
    )


MUTATIONS: tuple[Mutation, ...] = (
    flipped,
    cut,
    of_lines(swap),
    of_lines(repeat),
    of_lines(drop),
    of_lines(nest),
    replaced(rb"[:\[,](-?\d[\d.e+-]*)(?=[,\]}])", NUMBERS),
    replaced(rb"[:\[,](-?\d[\d.e+-]*)(?=[,\]}])", NUMBERS, most=1),
    everywhere,
    replaced(rb'":"([^"\\]*)"', TEXTS),
    replaced(rb'[{,]"([^"\\]*)":', TEXTS, most=1),
    replaced(rb'_at":"([^"\\]*)"', TIMES, most=1),
    foreign,
)

VERBS: tuple[tuple[str, ...], ...] = (
    ("show",),
    ("show", "FILE", "--all"),
    ("show", "FILE", "--json"),
    ("compare", "BASE", "FILE", "--all"),
    ("gate", "BASE", "FILE"),
    ("gate", "FILE", "BASE"),
    ("trend", "--x", "date"),
    ("convert", "FILE", "--to", "pytest-benchmark"),
    ("convert", "FILE", "--to", "bencher"),
    ("convert", "FILE", "--to", "junit"),
    ("show", "FILE", "--format", "markdown"),
)


STORED = Path(__file__).parents[1] / "net" / "runs"
UNREADABLE: tuple[tuple[str, str, Any, str], ...] = (
    ("casts", "casts.trace.ops", [], "an op that did not run"),
    ("casts", "casts.trace.casts.0.operation", 10**6, "an op that did not run"),
    ("casts", "casts.trace.casts.0.what", "<b>", "damaged: Expected `str` matching"),
    ("casts", "casts.step_samples.0", [], "damaged: Expected `array` of length >= 1"),
    ("scope", "scopes.steps", 10**15, "damaged: Expected `int` <= 1000000"),
)  # fmt: skip
"""What no run can have seen: the run, the field of its first line of that kind, a value, and what is said of that."""
SHOWN: tuple[tuple[str, str, Any], ...] = (
    ("plain", "divergence.gradient.reference_nan", 7),
    ("plain", "header.environment.torch_version", "x"),
    ("plain", "divergence.output.argmax_decisions", 2**53),
    ("convergence", "training.losses", [1e300] * 20),
    ("scaler", "training.losses", [-1e300, 1e300] * 8),
    ("headroom", "ranges.low_runs.0.scaler_scale", 1e300),
    ("headroom", "ranges.low_runs.0.scaler_scale", 0.0),
)  # fmt: skip
"""What is odd and no reason to show nothing."""


def changed(run: str, place: str, value: Any, folder: Path) -> Path:
    """Return a copy of a stored run of which the first line that has a field has another value in it."""
    records = [json.loads(line) for line in (STORED / f"{run}.jsonl").read_bytes().splitlines()]
    *way, last = (int(part) if part.isdigit() else part for part in place.split("."))
    held = next(record for record in records if way[0] in record)
    for part in way:
        held = held[part]
    held[last] = value
    path = folder / "results" / "runs" / f"{records[0]['header']['run']}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(("run", "place", "value", "said"), UNREADABLE, ids=lambda each: str(each)[:30])
def test_what_no_run_can_have_seen_is_told_with_its_line(
    run: str, place: str, value: Any, said: str, tmp_path: Path, ampbench: Run
) -> None:
    path = changed(run, place, value, tmp_path)
    shown = ampbench("show", path)
    assert (shown.code, shown.out) == (2, "")
    assert f"{path}, line " in shown.err
    assert said in shown.err


@pytest.mark.parametrize(("run", "place", "value"), SHOWN)
def test_what_is_odd_is_shown(run: str, place: str, value: Any, tmp_path: Path, ampbench: Run) -> None:
    with no_longer_than(SECONDS):
        assert ampbench("show", changed(run, place, value, tmp_path)).code == 0


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*ends in a cut line")
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_damaged_file_makes_a_verb_fail_hang_or_tell_nonsense(group: int, results: Path, ampbench: Run) -> None:
    base = results / "runs" / f"{RUN_ID}.jsonl"
    whole = base.read_bytes()
    path = results / "runs" / "20260201T120000Z-bench-abc123.jsonl"
    accepted = 0
    for seed in range(group, FILES, GROUPS):
        draw = random.Random(seed)
        content = MUTATIONS[seed % len(MUTATIONS)](whole, draw)
        if draw.random() < 0.5:  # under its own name, or as the run that it says it is
            content = content.replace(RUN_ID.encode(), path.stem.encode())
        path.write_bytes(content)
        with no_longer_than(SECONDS):
            accepted += is_plausible(path)
        for verb in (("list", "runs"), *draw.sample(VERBS, 2)):
            words = [{"FILE": str(path), "BASE": str(base)}.get(word, word) for word in verb]
            words += [] if verb[0] in ("gate", "convert", "compare") else ["--results", str(results)]
            with no_longer_than(SECONDS):
                said = ampbench(*words)
            assert said.code in DOCUMENTED, f"{words} of the file of seed {seed}: {said.code}, {said.err[-500:]}"
            assert "Traceback" not in said.err
    assert 0 < accepted < FILES // GROUPS, "some damage is to be seen, and some only its author could see"


def is_plausible(path: Path) -> bool:
    """Return whether a file is read; what is read must be what a run can have measured."""
    try:
        stored = read_run(path)
        frame = load(path)
    except StoreError as error:
        assert str(path) in str(error)  # noqa: PT017
        return False
    for measured in stored.rounds:
        assert all(1e-9 <= sample <= 1e6 for build in measured.samples for sample in build)
    seconds = frame["seconds_median"].to_numpy()
    assert np.all(np.isnan(seconds) | (seconds >= 1e-9))
    for name in ("argmax_agreement", "grad_flushed_share"):
        values = frame[name].to_numpy()
        assert np.all(np.isnan(values) | ((values >= 0) & (values <= 1)))
    for name in ("output_rel_l2", "grad_rel_l2", "peak_memory_bytes", "output_nonfinite", "items_per_second"):
        values = frame[name].to_numpy()
        assert np.all(np.isnan(values) | (values >= 0))
    return True
