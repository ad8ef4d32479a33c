"""The proof for an accelerator (`benchmarks/device`): its parts, what becomes of items that fail, packing, wheels."""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # as in tests/worker/test_machine.py

from ampbench.cli.main import main
from ampbench.records.case import DEVICES
from ampbench.trace.dtypes import is_present
from ampbench.worker.machine import Accelerator
from ampbench.worker.memory import measure_memory
from ampbench.workload import Workload
from benchmarks.device import __main__ as command
from benchmarks.device import against, asking, planted, running, wheels
from benchmarks.device.parts import CARD, EVERY, MACHINE, PACKING, PARTS, SECONDS, SPARE, Item, Part, table
from benchmarks.device.running import FAILED, NOT_RUN, PASSED, Given
from tests.scripted_accelerator import Script, ScriptedSource
from tests.worker import test_machine
from tests.worker.conftest import make_case
from tests.worker.test_machine import FakeAccelerator

fake, on_fake = test_machine.fake, test_machine.on_fake
ROOT = Path(__file__).parents[1]
ITEMS = {item.name: item for part in PARTS for item in part.items}


def test_there_are_six_parts_at_most_and_each_is_planned_to_end_with_time_to_spare() -> None:
    assert len(PARTS) <= 6
    assert {part.seconds for part in PARTS} == {SECONDS}
    assert SECONDS <= 9 * 60
    assert CARD.seconds <= 20 * 60
    for part in EVERY.values():
        planned = MACHINE.planned + sum(item.planned for item in part.items) + PACKING
        assert planned <= (1 - SPARE) * part.seconds, part.name


def test_items_have_names_of_their_own_and_limits_above_what_is_planned() -> None:
    assert len(ITEMS) == sum(len(part.items) for part in PARTS)
    for item in (MACHINE, *ITEMS.values()):
        assert item.planned < item.limit < SECONDS
        assert item.proves


def test_every_file_of_tests_device_is_an_item() -> None:
    files = {f"tests/device/{path.name}" for path in (ROOT / "tests" / "device").glob("test_*.py")}
    assert {item.asked["file"] for item in ITEMS.values() if "file" in item.asked} == files


def test_every_item_is_a_function_that_takes_what_it_is_asked() -> None:
    for item in (MACHINE, *ITEMS.values()):
        module, _, name = item.does.partition(":")
        function = getattr(importlib.import_module(module), name)
        for asked in (dict(item.asked), {**item.asked, **item.quick}):
            inspect.signature(function).bind(None, **asked)
            assert json.loads(json.dumps(asked)).keys() == asked.keys()


def test_the_page_has_every_item_as_the_tables_have_it() -> None:
    """`python -c "from benchmarks.device.parts import table; print(table())"` prints it."""
    page = (ROOT / "docs" / "device.md").read_text(encoding="utf-8")
    assert table() in page
    assert f"at most {1 - SPARE:.0%}".replace("%", " %") in page


VERBS = {"run": ["run"], "passes": ["run"], "control": ["ab"], "planted": ["ab"], "ceilings": ["study", "ceilings"]}


def asked_of_verbs() -> list[tuple[str, ...]]:
    """The verbs that items ask, each with the options of all of its items."""
    found: dict[tuple[str, ...], set[str]] = {}
    for item in ITEMS.values():
        arguments = (*item.asked.get("arguments", ()), *item.quick.get("arguments", ()))
        if arguments:
            own = list(arguments[: 2 if arguments[0] in ("study", "explain") else 1])
            verb = VERBS.get(item.does.partition(":")[2], own)
            found.setdefault(tuple(verb), set()).update(word for word in arguments if word.startswith("--"))
    return [(*verb, *sorted(options)) for verb, options in found.items()]


@pytest.mark.parametrize("asked", asked_of_verbs(), ids=" ".join)
def test_the_options_that_items_give_are_known(asked: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    verb = [word for word in asked if not word.startswith("--")]
    assert main([*verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert [option for option in asked if option.startswith("--") and option not in told] == []


def made(name: str, limit: int = 30, **asked: str) -> Item:
    return Item(name, limit, 1, f"tests.made_items:{name}", f"that it {name}", asked)


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setattr(running, "MACHINE", made("passes"))
    items = (made("finds"), made("raises"), made("is_absent"), made("crashes"), made("hangs", 10), made("passes"))
    return Part("made", "what can come of an item", items, seconds=300)


@pytest.mark.slow
def test_an_item_that_fails_is_a_row_with_the_reason_and_the_others_go_on(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "GRACE", 2)
    monkeypatch.setattr(running, "EVERY", {"made": part})
    said: list[str] = []
    rows = running.run_part(part, "cuda", tmp_path, quick=True, tell=said.append)
    found = {row.item: (row.outcome, row.said) for row in rows[1:]}
    assert found["finds"] == (FAILED, "2 differ")
    assert found["raises"] == (FAILED, "ValueError: no such thing")
    assert found["is_absent"] == (NOT_RUN, "there is no cuda here")
    assert found["crashes"] == (FAILED, "no answer, exit code -6: about to")
    assert found["hangs"] == (FAILED, "ended at its limit of 10 s: waiting")
    assert found["passes"][0] == PASSED
    assert [line.split(":")[1].strip() for line in said] == [row.item for row in rows]
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "what the item started lives on"
        time.sleep(0.05)
    assert (tmp_path / "logs" / "made-passes.txt").read_text() == "looked\n"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["counts"] == {PASSED: 2, FAILED: 4, NOT_RUN: 1}
    (stored,) = summary["parts"]
    assert (stored["device"], stored["quick"], stored["patience"]) == ("cuda", True, 1)
    assert all(item["seconds"] >= 0 and item["cpu_seconds"] >= 0 for item in stored["items"])
    told = (tmp_path / "summary.md").read_text()
    assert "2 passed, 4 failed, 1 not run" in told
    assert "With `--quick`" in told
    assert "rehearsal" not in told
    assert "| 1\\|2 | 3 |" in told
    assert "| raises | failed | " in told


def test_where_the_machine_is_not_ready_nothing_is_tried(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MACHINE", made("finds"))
    rows = running.run_part(part, "xpu", tmp_path, quick=False, tell=lambda _: None)
    assert [row.outcome for row in rows] == [FAILED, *[NOT_RUN] * len(part.items)]
    assert {row.said for row in rows[1:]} == {"the machine is not ready: 2 differ"}


def test_an_item_for_which_no_time_is_left_is_not_run(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PACKING", 299)
    part = Part(part.name, part.proves, (made("passes"),), seconds=300)
    rows = running.run_part(part, "cpu", tmp_path, quick=False, tell=lambda _: None)
    assert {(row.outcome, row.said) for row in rows} == {(NOT_RUN, "no time was left of the part's 300 s")}
    assert running.run_part(part, "cpu", tmp_path, quick=False, patience=2, tell=lambda _: None)[0].outcome == PASSED
    text = (tmp_path / "part-made.json").read_text()
    assert json.loads(text)["patience"] == 2


def test_a_summary_of_a_rehearsal_says_so_and_which_parts_are_missing() -> None:
    row = {"item": "a", "proves": "b", "outcome": PASSED, "said": "", "seconds": 1.0, "cpu_seconds": 1.0, "limit": 2,
           "planned": 1, "headers": (), "table": []}  # fmt: skip
    part = {"part": "truth", "proves": "c", "device": "cpu", "quick": False, "patience": 3, "began": "now",
            "seconds": 1.0, "items": [row]}  # fmt: skip
    told = running.summary([part])
    assert "**A rehearsal: the device was the CPU. Nothing here says that an accelerator works.**" in told
    assert "limits so many times as long" in told
    assert "Parts not run: tests, suite, networks, decisions, training." in told
    assert "Parts not run" not in running.summary([{**part, "part": "card"}])


def test_a_packed_part_is_one_file_and_several_make_one_summary(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {name: Part(name, part.proves, (made("passes"),)) for name in ("truth", "suite")}
    monkeypatch.setattr(command, "EVERY", short)
    out = ["--device", "cuda", "--wheels", str(tmp_path / "none"), "--pack", "--out"]
    for name in short:
        assert command.main([name, *out, str(tmp_path / name)]) == 0
        assert {path.name for path in (tmp_path / name).iterdir()} == {
            f"{name}.tar.gz", f"part-{name}.json", "summary.json", "summary.md"
        }  # fmt: skip
    packed = [str(tmp_path / name / f"{name}.tar.gz") for name in short]
    assert command.main(["gather", *packed, "--out", str(tmp_path / "all")]) == 0
    gathered = json.loads((tmp_path / "all" / "summary.json").read_text())
    assert [one["part"] for one in gathered["parts"]] == ["suite", "truth"]
    assert gathered["counts"][PASSED] == 4
    assert (tmp_path / "all" / "logs" / "suite-passes.txt").exists()
    assert (tmp_path / "all" / "runs" / "a.jsonl").exists()
    assert "summary.md" in capsys.readouterr().out


def test_a_part_that_is_ended_from_outside_leaves_what_it_has_and_no_process(tmp_path: Path) -> None:
    program = (
        "import signal, sys; from benchmarks.device import __main__ as command, running;"
        "from benchmarks.device.parts import Item, Part;"
        "made = lambda name: Item(name, 60, 1, f'tests.made_items:{name}', '');"
        "running.MACHINE = made('passes'); command.EVERY = {'truth': Part('truth', '', (made('hangs'),))};"
        "signal.signal(signal.SIGTERM, command._ended); sys.exit(command.main(sys.argv[1:]))"
    )
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "truth", "--pack", "--out", str(out), "--wheels", str(tmp_path / "none")],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert "truth: passes: passed" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    with tarfile.open(out / "truth.tar.gz") as packed:
        assert "part-truth.json" in packed.getnames()
    assert "1 passed" in (out / "summary.md").read_text()
    alive = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    assert not [line for line in alive if b"made_items:hangs" in line and str(tmp_path).encode() in line]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_part_too_large_to_be_sent_is_packed_without_its_largest_files(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    folder.mkdir()
    small, large = folder / "small.txt", folder / "large.bin"
    small.write_text("kept")
    large.write_bytes(bytes((value * 7919 >> 3) % 251 for value in range(300_000)))
    assert running.pack(folder, tmp_path / "whole.tar.gz") == []
    assert running.pack(folder, tmp_path / "cut.tar.gz", most=400) == ["large.bin"]
    with tarfile.open(tmp_path / "cut.tar.gz") as packed:
        assert packed.getnames() == ["small.txt"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        (["truth", "--device", "gpu"], "invalid choice: 'gpu'"),
        (["truth", "a.tar.gz"], "gather takes the packed parts, and only it does"),
        (["gather"], "gather takes the packed parts, and only it does"),
        (["gather", "a.tar.gz"], "there is no file a.tar.gz"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("device", DEVICES)
def test_it_can_be_asked_of_every_device(device: str) -> None:
    assert command._asked([CARD.name, "--device", device]).device == device


def test_the_runner_needs_nothing_but_python() -> None:
    """A bare machine has no package of ampbench's until wheels are unpacked, and torch is for the items' processes."""
    program = "import benchmarks.device.__main__, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported - {"benchmarks"} <= set(sys.stdlib_module_names) | {"__main__"}


def test_the_wheels_are_what_pyproject_asks_for_but_for_what_is_there_with_torch() -> None:
    names = {wheels.name_of(one) for one in wheels.wanted()}
    assert {"msgspec", "click", "rich", "packaging", "jinja2", "markupsafe", "vl-convert-python", "pytest"} <= names
    assert not names & {"torch", "numpy", "pandas", "scipy"}
    assert "msgspec>=0.19" in wheels.wanted()
    assert {"scipy", "numpy==2.1"} <= {*wheels.wanted(["scipy", "numpy==2.1"])}


def wheel(folder: Path, name: str, tag: str, needs: str = "") -> Path:
    path = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as held:
        held.writestr(f"{name}.py", "value = 1\n")
        held.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n{needs}\n")
    return path


def test_wheels_that_this_python_lacks_are_unpacked_and_no_others(tmp_path: Path) -> None:
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pure = wheel(tmp_path, "made_pure", "py3-none-any")
    own = wheel(tmp_path, "made_own", f"{here}-{here}-manylinux_2_17_x86_64")
    stable = wheel(tmp_path, "made_stable", "cp37-abi3-manylinux_2_17_x86_64")
    wheel(tmp_path, "made_other", "cp39-cp39-manylinux_2_17_x86_64")
    wheel(tmp_path, "msgspec", "py3-none-any")  # which is installed
    assert wheels.lacking(sorted(tmp_path.glob("*.whl"))) == [own, pure, stable]
    with wheels.unpacked(tmp_path) as paths:
        (path,) = paths
        assert sorted(one.name for one in path.glob("*.py")) == ["made_own.py", "made_pure.py", "made_stable.py"]
    assert not path.exists()
    with wheels.unpacked(tmp_path / "none") as paths:
        assert paths == []


def test_what_wheels_need_in_turn_is_missed(tmp_path: Path) -> None:
    wheel(tmp_path, "made_pure", "py3-none-any", 'Requires-Dist: numpy\nRequires-Dist: made-own>=1\n'
          'Requires-Dist: tomli; python_version < "3.11"\nRequires-Dist: extra-one; extra == "more"')  # fmt: skip
    assert wheels.needs(tmp_path) == ["made-own of made_pure"]
    wheel(tmp_path, "made_own", "py3-none-any")
    assert wheels.needs(tmp_path) == []


@pytest.mark.slow
def test_a_part_of_the_cpu_is_done_from_the_tree(tmp_path: Path) -> None:
    """The cheapest item for real: the machine is looked at, by processes that import torch and ampbench."""
    part = Part("made", "the machine alone", (made("is_absent"),), seconds=600)
    rows = running.run_part(part, "cpu", tmp_path, quick=True, tell=lambda _: None)
    assert [row.outcome for row in rows] == [PASSED, NOT_RUN]
    assert dict(rows[0].table)["a product"] == "right"
    assert rows[0].said.startswith("torch ")


@pytest.fixture
def scripted(fake: FakeAccelerator, monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    """A scripted accelerator whose own module of torch answers, too: what ampbench is held to account by."""
    stats = {"allocated_bytes.all.current": 1000}
    module = SimpleNamespace(
        synchronize=fake.synchronize,
        memory_stats=lambda: {**stats, "allocated_bytes.all.peak": fake.peak},
        reset_peak_memory_stats=lambda: setattr(fake, "peak", fake.allocated),
        Event=lambda enable_timing: fake.event(fake.type, enable_timing),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda type: module)
    return fake


def test_on_an_accelerator_peaks_and_times_are_held_against_its_own_module(
    scripted: FakeAccelerator, on_fake: Workload
) -> None:
    device = Accelerator(scripted.type)
    case = make_case(device=scripted.type)
    assert against._torchs_peak(on_fake, case, device) == measure_memory(on_fake, case, device).peak_bytes == 4000
    assert against._by_events(scripted.step, scripted.type) == pytest.approx(0.002)


@pytest.mark.parametrize(("watts", "passes"), [(400.0, True), (430.0, True), (460.0, False), (200.0, False)])
def test_power_that_is_told_has_to_be_what_a_counter_of_energy_gains(
    watts: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter says 400 W; the source says `watts`."""
    monkeypatch.setattr(against, "COUNTED_SECONDS", 0.2)
    source = ScriptedSource(Script(power_watts=lambda now: watts))
    found = against._counted(lambda: 400.0 * time.perf_counter(), source, time.sleep)
    assert found.passed is passes
    assert "400 W by the counter" in found.said


def test_a_device_that_tells_no_power_does_not_pass_for_one_that_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "COUNTED_SECONDS", 0.1)
    source = ScriptedSource(Script(gone=0.0))
    found = against._counted(lambda: 400.0 * time.perf_counter(), source, time.sleep)
    assert not found.passed
    assert found.said.startswith("power: not told; by the counter: 400 W")


@pytest.mark.parametrize(("high", "passes"), [(1.004, True), (1.03, False)])
def test_reading_sensors_may_cost_a_hundredth_of_a_step(
    high: float, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "_needs", lambda given: None)
    monkeypatch.setattr(against, "cost", lambda type, size, seconds: (1.001, 0.999, high, 0.0002))
    found = against.sampling(Given("cuda", tmp_path, False, 60.0))
    assert found.passed is passes
    assert found.said == f"a step takes 1.0010 times as long, at most {high:.4f}"


def test_an_item_for_a_device_that_is_not_here_is_not_run(tmp_path: Path) -> None:
    absent = next(device for device in ("xpu", "cuda") if not is_present(device))
    given = Given(absent, tmp_path, True, 60.0)
    for name in ("rules", "casts", "headroom", "memory", "time", "energy", "sampling"):
        assert running.do(ITEMS[name].does, ITEMS[name].asked, given) == {
            "outcome": NOT_RUN, "said": f"there is no {absent} here"
        }  # fmt: skip
    found = against.machine(given)
    assert not found.passed
    assert f"no {absent} that torch can use: " in found.said


@pytest.mark.slow
def test_tests_that_are_all_skipped_prove_nothing(tmp_path: Path) -> None:
    test = ITEMS["tests training_on_device"]
    if is_present("cuda") or is_present("xpu"):
        pytest.skip("they run here")
    found = running.do(test.does, test.asked, Given("cpu", tmp_path, True, 60.0))
    assert found == {"outcome": NOT_RUN, "said": "2 skipped: there is no accelerator here"}


def test_fake_tensors_stand_in_for_a_device_that_is_hidden() -> None:
    from ampbench.trace import dtypes

    assert dtypes.is_present("cpu")
    with against.hidden("cpu"):
        assert not dtypes.is_present("cpu")
        with dtypes.stood_in("cpu"):
            assert type(torch.empty(2)).__name__ == "FakeTensor"
    assert dtypes.is_present("cpu")


def test_one_layer_more_in_twenty_is_five_per_cent_more_operations() -> None:
    plain, slower, renamed = (planted.layers(width=8, batch=2, **arm) for arm in ({}, {"changed": 1}, {"renamed": 1}))
    counts = [sum(weight.numel() for weight in one.parameters()) for one, _ in (plain, slower, renamed)]
    assert counts[1] / counts[0] == 1.05
    assert counts[2] == counts[0]


TIMES = [
    {"case_id": "layers/b/fp32/cuda", "metric": "seconds_median", "status": "regressed", "change": 0.052,
     "low": 0.04, "high": 0.06, "reason": "x"},
    {"case_id": "layers/b/fp32/cuda", "metric": "other", "status": "regressed", "change": 2.0},
]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "verdict", "change", "passes"),
    [
        (1, "regressed", 0.052, True),
        (1, "regressed", 0.2, False),
        (1, "unchanged", 0.01, False),
        (0, "unchanged", 0.001, True),
        (0, "inconclusive", None, True),
        (0, "regressed", 0.05, False),
    ],
)
def test_a_planted_slowdown_has_to_be_found_at_its_size_and_none_where_none_is(
    changed: int, verdict: str, change: float | None, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"findings": [{**TIMES[0], "status": verdict, "change": change}, TIMES[1]]}
    monkeypatch.setattr(asking, "asked", lambda *_: (0, json.dumps(told), []))
    assert asking.planted(Given("cuda", tmp_path, False, 60.0), changed).passed is passes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rules", "casts", "memory", "time", "sampling"])
def test_an_item_that_holds_ampbench_against_something_else_is_rehearsed_on_the_cpu(name: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    item = ITEMS[name]
    row = running.run_item(item, running.Given("cpu", tmp_path, True, 600.0), "truth")
    assert row.outcome == PASSED, row.said
