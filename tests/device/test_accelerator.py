"""What only an accelerator can show: `pytest tests/device` takes some minutes on a card, and skips all without one."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import ampbench
from ampbench.cli.main import main
from ampbench.judge.notes import CEILING_REACHED
from ampbench.store import StoredRun, list_runs, read_run
from ampbench.studies.ceilings import COPY, Ceiling, best, datasheet_of, share
from ampbench.studies.input_storage import StoragePass
from ampbench.studies.scope import FORWARD, FORWARD_AND_LOSS, SCOPES, WHOLE_LOOP, ScopePass
from ampbench.studies.training import SETTINGS, Training
from ampbench.trace.dtypes import short_dtype
from ampbench.worker.memory import count_flops


@pytest.fixture(scope="session")
def device() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        pytest.skip("there is no accelerator here")
    return found.type


@pytest.fixture(scope="module")
def rows(device: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Three networks of the tiny grid on the accelerator, measured once, in tenths of a second."""
    results = tmp_path_factory.mktemp("results")
    networks = ["mlp", "simple_conv", "transformer_encoder"]
    arguments = ["run", *networks, "--preset", "tiny", "--budget", "1", "--results", str(results)]
    assert main([*arguments, "--device", device]) in (0, 3)
    found: list[dict[str, object]] = ampbench.load(Path(results)).to_dict("records")
    return found


def test_every_case_is_measured_or_skipped_for_a_reason(rows: list[dict[str, object]]) -> None:
    failed = {row["case_id"]: row["reason"] for row in rows if row["outcome"] == "failed"}
    assert failed == {}
    assert all(row["reason"] for row in rows if row["outcome"] == "skipped")


def test_memory_is_the_allocators_and_never_nothing(rows: list[dict[str, object]]) -> None:
    measured = [row for row in rows if row["outcome"] == "ok"]
    assert {row["memory_source"] for row in measured} == {"allocator"}
    assert all(row["peak_memory_bytes"] > 0 for row in measured)


def test_tf32_diverges_more_than_fp32_where_the_device_has_it(rows: list[dict[str, object]]) -> None:
    errors = {
        row["precision"]: row["output_rel_l2"]
        for row in rows
        if row["workload"] == "mlp" and row["phase"] == "inference" and row["outcome"] == "ok"
    }
    if "tf32" not in errors:
        pytest.skip("the device has no tf32")
    assert errors["tf32"] > 10 * errors["fp32"]


GREEDY = """
import torch


class Greedy(torch.nn.Module):
    def forward(self, x):
        return torch.zeros(x.shape[0], 1 << 30, device=x.device).add(x[:, :1]).sum(1)


def make(batch_size=1):
    return Greedy(), torch.ones(batch_size, 4)
"""
"""8 GiB of temporaries for each example."""


def test_a_batch_that_does_not_fit_is_a_failed_row_and_the_sweep_goes_on(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(GREEDY)
    arguments = ["--precision", "fp32", "--phase", "inference", "--budget", "1", "--device", device]
    assert main(["run", "model.py:make", "--sweep", "batch_size=1,64,2", *arguments]) == 3
    outcomes = {row["batch_size"]: row for row in ampbench.load(tmp_path / "results").to_dict("records")}
    assert {size: row["outcome"] for size, row in outcomes.items()} == {1: "ok", 64: "failed", 2: "ok"}
    assert "out of memory" in outcomes[64]["reason"]


def networks() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    return {
        "gru": (torch.nn.GRU(32, 64, 2, batch_first=True), torch.randn(4, 10, 32)),
        "lstm": (torch.nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True), torch.randn(4, 10, 32)),
        "convolution": (torch.nn.Conv2d(8, 16, 3, groups=4), torch.randn(2, 8, 12, 12)),
        "attention": (torch.nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(4, 10, 32)),
    }


def counted(name: str, dtype: torch.dtype | None, device: str) -> dict[str, int]:
    module, given = (one.to(device) for one in networks()[name])
    arguments = (given, given, given) if name == "attention" else (given,)

    def run() -> None:
        with torch.no_grad(), torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            module(*arguments)

    return count_flops(run)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", networks())
def test_a_network_asks_for_as_much_on_the_accelerator_as_on_the_cpu(
    device: str, name: str, dtype: torch.dtype | None
) -> None:
    expected = counted(name, None, "cpu")["fp32"]  # in fp32: oneDNN has no LSTM in fp16
    assert expected
    assert counted(name, dtype, device) == {short_dtype(dtype or torch.float32): expected}


PLAIN = ["--precision", "fp32", "--precision", "bf16_autocast", "--rounds", "1", "--min-run-time", "0.06"]


def measured(device: str, results: Path, *arguments: str) -> dict[tuple[str, ...], Mapping[str, object]]:
    """Return the rows of a run on the device by workload, precision, phase and path."""
    assert main(["run", *arguments, *PLAIN, "--device", device, "--results", str(results)]) == 0
    rows = ampbench.load(results).to_dict("records")
    return {tuple(row[name] for name in ("workload", "precision", "phase", "path")): row for row in rows}


def test_large_products_keep_the_device_busier_than_small_ones(device: str, tmp_path: Path) -> None:
    small = measured(device, tmp_path / "small", "mlp", "--preset", "tiny", "--phase", "inference")
    large = measured(device, tmp_path / "large", "mlp", "--preset", "large", "--phase", "inference")
    for case, row in small.items():
        assert 0 < row["busy_share"] < large[case]["busy_share"] <= 1


@pytest.mark.parametrize(
    "options",
    [
        ["--path", "eager,compiled,compiled-reduce-overhead", "--phase", "training"],
        ["--path", "eager,compiled-reduce-overhead", "--phase", "inference"],
    ],
    ids=["training", "inference"],
)
def test_what_is_recorded_computes_what_the_eager_step_does_and_has_its_memory(
    device: str, options: list[str], tmp_path: Path
) -> None:
    rows = measured(device, tmp_path, "mlp", "--preset", "tiny", *options)
    others = [case for case in rows if case[3] != "eager"]
    assert others
    for case in others:
        row, eager = rows[case], rows[(*case[:3], "eager")]
        assert row["outcome"] == "ok", row["reason"]
        assert row["output_rel_l2"] < 3 * eager["output_rel_l2"] + 1e-6
        assert row["peak_memory_bytes"] > eager["peak_memory_bytes"] / 2
        if case[2] == "training":
            assert row["grad_rel_l2"] < 3 * eager["grad_rel_l2"] + 1e-6
            assert row["param_rel_l2"] < 3 * eager["param_rel_l2"] + 1e-6


IN_PLACE = """
import torch
from ampbench import Workload


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, given, total):
        total.add_(1)
        return self.layer(given + total)


def counting():
    return Workload(module=Counting(), inputs=(torch.randn(8, 64), torch.zeros(64)))
"""


def test_graphs_that_torch_leaves_aside_are_told_with_its_reason(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inputs that change in place are not recorded: docs of torch.compiler_cudagraph_trees, "Input Mutation"."""
    made = tmp_path / "net.py"
    made.write_text(IN_PLACE)
    options = ["--path", "compiled-reduce-overhead", "--phase", "inference"]
    rows = measured(device, tmp_path / "results", f"{made}:counting", *options)
    assert rows
    assert all(row["outcome"] == "ok" for row in rows.values())
    assert "torch.compile recorded no graphs" in capsys.readouterr().out


@pytest.fixture(scope="module")
def stored(device: str, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """All ceilings of the accelerator, measured once."""
    results = tmp_path_factory.mktemp("results")
    assert main(["study", "ceilings", "--device", device, "--seconds", "1", "--results", str(results)]) == 0
    (one,) = list_runs(results)
    return read_run(one)


def test_every_ceiling_is_attained(stored: StoredRun) -> None:
    assert {found.operation: found.error for found in stored.every(Ceiling)} == dict.fromkeys(
        ("matmul", "conv", "attention", "copy", "read"), ""
    )
    assert all(one.samples for found in stored.every(Ceiling) for one in found.attained)


def test_half_precision_attains_more_than_fp32_where_it_is_native(device: str, stored: StoredRun) -> None:
    described = stored.header.environment.device(device)
    assert described is not None
    fp32 = best(stored.every(Ceiling), device, "fp32")
    assert fp32 is not None
    for dtype in ("bf16", "fp16"):
        attained = best(stored.every(Ceiling), device, dtype)
        assert attained is None or described.arithmetic[dtype] != "native" or attained > fp32


def test_no_ceiling_is_above_the_datasheet(device: str, stored: StoredRun) -> None:
    described = stored.header.environment.device(device)
    promised = datasheet_of(described.name) if described is not None else None
    if promised is None:
        pytest.skip("this device has no datasheet in ampbench")
    moved = best(stored.every(Ceiling), device, "fp32", COPY)
    assert moved is not None
    assert 0.3 * 1e9 * promised.memory < moved <= 1.02e9 * promised.memory
    # convolutions by Winograd's algorithm do with fewer operations than are counted
    shares = [share(found, promised) for found in stored.every(Ceiling) if found.operation == "matmul"]
    assert all(0.1 < value <= 1.05 for value in shares if value is not None)


def test_no_case_attains_more_than_the_ceilings(device: str, stored: StoredRun) -> None:
    workloads, results = ["simple_conv", "mlp", "transformer_encoder"], stored.path.parents[1]
    asked = ["--phase", "inference", "--precision", "fp32,bf16_autocast,fp16_autocast", "--budget", "1"]
    assert main(["run", *workloads, *asked, "--device", device, "--results", str(results)]) in (0, 3)
    frame = ampbench.load(results)
    measured = frame[frame.outcome == "ok"]
    assert (measured.flops_per_step > 0).all()
    shares = measured.set_index("case_id").ceiling_share
    assert shares.notna().all()
    assert shares[shares > CEILING_REACHED].to_dict() == {}


def test_the_whole_loop_shows_its_costs_and_the_recommended_scope_none(device: str, tmp_path: Path) -> None:
    arguments = ["study", "scope", "mlp", "transformer_encoder", "--preset", "tiny", "--device", device]
    precisions = ["--precision", "fp16_autocast", "--precision", "bf16_autocast"]
    assert main([*arguments, *precisions, "--steps", "4", "--results", str(tmp_path)]) == 0
    (file,) = list_runs(tmp_path)
    stored = read_run(file)
    assert len(stored.of(ScopePass)) == 4
    for found in stored.of(ScopePass).values():
        runs = {run.scope: run for run in found.scopes}
        assert list(runs) == list(SCOPES)
        best, whole = runs[FORWARD_AND_LOSS], runs[WHOLE_LOOP]
        assert all(run.samples and run.casts and min(run.peak_bytes) > 0 for run in runs.values())
        assert best.stale_weights == [0] * 4
        assert best.alive_bytes[-1] <= best.alive_bytes[0]
        assert whole.stale_weights[-1] > 0
        assert whole.alive_bytes[-1] > best.alive_bytes[-1]
        assert whole.update_rel_l2 > 2 * best.update_rel_l2
        assert (best.dtypes["loss"], runs[FORWARD].dtypes["loss"] != "fp32") == ("fp32", True)


def test_inputs_in_half_are_copied_in_half_the_bytes_and_a_linear_takes_them_as_they_are(
    device: str, tmp_path: Path
) -> None:
    arguments = ["--preset", "tiny", "--seconds", "1", "--device", device, "--results", str(tmp_path)]
    precisions = ["--precision", "bf16_autocast", "--precision", "fp16_autocast"]
    assert main(["study", "input-storage", "mlp", "transformer_encoder", *precisions, *arguments]) == 0
    (path,) = list_runs(tmp_path)
    run = read_run(path)
    assert len(run.of(StoragePass)) == 8
    for case_id, found in run.of(StoragePass).items():
        assert 2 * found.low.stored_bytes == found.full.stored_bytes
        assert min(found.full.copy_samples) > 0
        if run.cases[case_id].workload == "mlp":
            assert (found.identical, found.uses[0].read_in_fp32) == (True, "")
            assert found.full.casts - found.low.casts == 1
        else:
            assert found.identical is False
            assert found.uses[0].use == "cast to fp32"


MODEL = """
import torch
import ampbench


def make(width=32):
    rows = torch.randn(320, 16)
    classes = rows[:, :4].argmax(1)
    return ampbench.Workload(
        module=torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)),
        inputs=list(rows[:256].split(32)),
        targets=list(classes[:256].split(32)),
        held_out=(rows[256:], classes[256:]),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )
"""


def test_every_precision_trains_and_learns(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    arguments = ["model.py:make", "--steps", "60", "--seeds", "2", "--device", device, "--json"]
    assert main(["study", "training", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == "complete"
    (path,) = list_runs(tmp_path / "results")
    run = read_run(path)
    assert not run.failures
    for case_id, trainings in run.several_of(Training).items():
        for training in trainings:
            assert (training.error, training.ended_at) == ("", None), case_id
            last = training.scores[-1]
            assert last.correct is not None
            assert last.decisions == 64
            assert last.correct > 40, case_id
    fp32 = next(found for case_id, found in run.several_of(Training).items() if "/fp32/" in case_id)
    assert sorted(training.arm for training in fp32) == ["", "", "control", "control", "reference", "reference"]


def test_every_setting_of_gradscaler_trains_on_the_device(device: str, tmp_path: Path) -> None:
    arguments = ["study", "training", "mlp", "--preset", "tiny", "--steps", "30", "--seeds", "1"]
    assert main([*arguments, "--setting", "all", "--device", device, "--results", str(tmp_path)]) == 0
    (file,) = list_runs(tmp_path)
    settings = [training for training in read_run(file).every(Training) if training.arm in SETTINGS]
    assert [training.error for training in settings] == [""] * 5
    assert all(training.looks for training in settings)
    (default,) = [training for training in settings if training.arm == "default"]
    assert None not in default.losses
    assert default.looks[-1].rel_l2
