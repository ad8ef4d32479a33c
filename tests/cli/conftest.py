"""A stored run with the numbers of a two-core AMD EPYC (native bf16, emulated fp16), written by the real writer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ampbench.cli.main import main
from ampbench.records.case import Case, DeviceDescription, Environment, WorkloadSource
from ampbench.records.measured import Divergence, Failure, MemoryPass, Recipe, Round, Skip
from ampbench.records.run import Header, Settings
from ampbench.store import RunWriter
from tests.compared_runs import BF16, FP32, noisy, rounds_of
from tests.stored_runs import COMPLETE, RUN, make_case, make_divergence, make_header, make_memory, make_round, write_run

RUN_ID = RUN
ENVIRONMENT = Environment(
    host="bench",
    system="Linux-6.18-x86_64",
    cpu="AMD EPYC",
    cpu_count=2,
    memory_bytes=25_276_514_304,
    python_version="3.11.7",
    torch_version="2.15.0",
    torchvision_version="0.29.2",
    numpy_version="2.4.6",
    threads=2,
    compiler="g++",
    devices=[
        DeviceDescription(
            type="cpu",
            available=True,
            name="AMD EPYC",
            count=1,
            memory_bytes=25_276_514_304,
            arithmetic={"fp32": "native", "bf16": "native", "fp16": "emulated"},
            autocast_dtype="bf16",
        ),
        DeviceDescription(type="cuda", available=False, reason="no cuda device or driver found"),
    ],
)
STORAGE = {"fp16_pure": "fp16", "bf16_pure": "bf16"}
FLOORS = {"fp16": 2.1e-4, "bf16": 1.6e-3}


@dataclass(frozen=True)
class Measured:
    """One case's numbers: seconds per step of each round, peak in bytes, errors."""

    precision: str
    seconds: list[float]
    peak_bytes: int = 1_000_000
    error: float | None = 4e-7
    agreeing: int | None = None
    grad_error: float | None = None
    flushed: int | None = None
    skipped_steps: int | None = None


RESNET18 = [
    Measured("fp32", [0.01521, 0.01528, 0.01517], 61_865_984, 3.9e-7, 8),
    Measured("fp16_autocast", [0.8671, 0.8702, 0.8613], 84_934_656, 7.3e-4, 8),
    Measured("bf16_autocast", [0.00994, 0.01002, 0.00989], 55_574_528, 5.4e-3, 8),
    Measured("fp16_pure", [0.8592, 0.8655, 0.8574], 42_047_488, 8.1e-4, 8),
    Measured("bf16_pure", [0.00871, 0.00874, 0.00869], 31_037_849, 7.9e-3, 7),
]
MLP = [
    Measured("fp32", [0.001812, 0.001820, 0.001805], 12_582_912, 2.1e-7, 31, 3.1e-7, 0),
    Measured("fp16_autocast", [0.02142, 0.02151, 0.02133], 14_680_064, 3.2e-4, 32, 4.0e-4, 1204, skipped_steps=0),
    Measured("bf16_autocast", [0.000911, 0.000918, 0.000908], 10_485_760, 2.6e-3, 32, 3.2e-3, 0),
    Measured("bf16_pure", [0.000702, 0.000705, 0.000699], 6_291_456, 3.8e-3, 32, 0.16, 0),
]
HEAD = [
    Measured("fp32", [0.00041, 0.00042, 0.00041], 8_388_608, 1.1e-7),
    Measured("bf16_autocast", [0.00052, 0.00053, 0.00052], 6_291_456, 2.2e-3),
    Measured("bf16_pure", [0.00040, 0.00044, 0.00038], 4_194_304, 2.9e-3),
]


def case_of(workload: str, precision: str, phase: str = "inference", batch_size: int = 8, **parameters: int) -> Case:
    family = "conv" if workload == "resnet18" else "linear"
    changes = {"workload": workload, "family": family, "parameters": parameters, "phase": phase}
    return make_case(precision, batch_size=batch_size, input_dtype=STORAGE.get(precision, "fp32"), **changes)


def entries_of(case: Case, measured: Measured) -> list[Round | MemoryPass | Divergence]:
    """Return what measuring a case leaves behind."""
    training = case.phase == "training"
    rounds = [
        make_round(
            case, number=number, server=number, samples=[[1.001 * seconds, seconds, 1.002 * seconds]] * 3,
            steps_per_sample=[4] * 3, warmup_steps=[12] * 3, items_per_step=float(case.batch_size or 1),
            weights_digest="a" * 64,
        )
        for number, seconds in enumerate(measured.seconds)
    ]  # fmt: skip
    peak = measured.peak_bytes
    own = {"gradient_bytes": peak // 4, "optimizer_bytes": 0} if training else {}
    memory = make_memory(case, peak, parameter_bytes=peak // 2, **own)
    outputs = {
        "output_reference_norm": 31.9 if measured.error is not None else 0.0,
        "output_rel_l2": measured.error,
        "output_max_abs": 0.01,
        "output_cosine": 0.99998,
        "output_nonfinite": 0,
        "output_floor_rel_l2": FLOORS.get(case.precision[:4], 3e-8),
        "output_fp32_rel_l2": 4e-7,
        "argmax_agreeing": measured.agreeing,
        "argmax_decisions": None if measured.agreeing is None else case.batch_size,
    }
    gradients = {
        "loss": 2.3026,
        "reference_loss": 2.3025,
        "grad_rel_l2": measured.grad_error,
        "grad_noise": 0.1,
        "grad_worst_parameter": "layers.2.weight",
        "grad_flushed": measured.flushed,
        "grad_elements": 1_000_000,
        "grad_nonfinite": 0,
        "skipped_steps": measured.skipped_steps,
        "scaler_scale": 65536.0 if measured.skipped_steps is not None else None,
        "recipe": Recipe(optimizer="torch.optim.SGD"),
    }
    known = outputs | (gradients if training else {"loss": None})
    return [*rounds, memory, make_divergence(case, weights_digest="a" * 64, inputs_digest="b" * 64, **known)]


def header() -> Header:
    mlp = WorkloadSource(name="mlp", family="linear", module="ampbench.workloads.linear", function="mlp", builtin=True)
    known = {"label": "nightly", "command": ["ampbench", "run"], "settings": Settings(rounds=3), "sources": [mlp]}
    return make_header(environment=ENVIRONMENT, **known)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with one complete run: two networks, a head, a failure and skips."""
    folder = tmp_path / "results"
    groups = [
        (RESNET18, "resnet18", "inference", 8, {"classes": 1000, "image": 224}),
        (MLP, "mlp", "training", 32, {"depth": 3, "width": 512}),
        (HEAD, "softmax_head", "inference", 256, {"width": 512}),
    ]
    with RunWriter.create(folder, header()) as writer:
        for rows, workload, phase, batch_size, parameters in groups:
            for row in rows:
                case = case_of(workload, row.precision, phase, batch_size, **parameters)
                writer.append(case, *entries_of(case, row))
            tf32 = case_of(workload, "tf32", phase, batch_size, **parameters)
            writer.append(tf32, Skip(case_id=tf32.case_id, reason="this CPU has no tf32"))
        failed = case_of("softmax_head", "fp16_pure", "inference", 256, width=512)
        message = "step 1 took longer than 300 s"
        writer.append(failed, Failure(case_id=failed.case_id, stage="round", cause="time-out", message=message))
        kl_head = case_of("kl_head", "fp32", "training", 32, width=512)
        writer.append(kl_head, Skip(case_id=kl_head.case_id, reason="no loss given"))
        control = entries_of(case_of("mlp", "fp32", "training", 32, depth=3, width=512), MLP[0])[0]
        assert isinstance(control, Round)
        writer.append(Round(**{name: getattr(control, name) for name in Round.__slots__} | {"control": True}))
        writer.append(COMPLETE)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder with three runs: before; after, with fp32 3% slower and more memory; one of another case."""
    both, other = [FP32, BF16], [make_case(workload="mlp")]
    for day, (run, slower, peak, cases) in enumerate(
        [("1-before", 1.0, 1000, both), ("2-after", 1.03, 1100, both), ("3-other", 1.0, 1000, other)], 1
    ):
        entries = []
        for case in cases:
            seconds = noisy(1e-3 * (slower if case is FP32 else 1), 8, seed=day)
            entries += [*rounds_of(case, seconds), make_memory(case, peak), make_divergence(case, output_rel_l2=1e-3)]
        started_at = f"2026-01-31T12:00:0{day}Z"
        write_run(tmp_path / "results", cases, *entries, COMPLETE, run=run, started_at=started_at)
    return tmp_path / "results"


@dataclass(frozen=True)
class Outcome:
    """What a command line returned and wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def ampbench(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the program in this process, as the shell would."""

    def run(*arguments: str | Path) -> Outcome:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def environment() -> Environment:
    return ENVIRONMENT


@pytest.fixture(autouse=True)
def _away_from_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, as wide as the tables are meant for, without colour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
