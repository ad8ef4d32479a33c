"""A decoder and a convolutional network in every emulated precision, with verdicts and without times."""

import subprocess
import sys
from pathlib import Path

import pytest

import ampbench
from ampbench.cli.main import main
from ampbench.core.precisions import PRECISIONS

EMULATED = [name for name, row in PRECISIONS.items() if row.emulated]
TORCHAO = """
import torch
from ampbench import Precision


def int8(module, optimizer):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(module, Int8WeightOnlyConfig())
    return module


def float8(module, optimizer):
    from torchao.quantization import Float8WeightOnlyConfig, quantize_

    quantize_(module, Float8WeightOnlyConfig())
    return module


ao_int8 = Precision(name="ao_int8", storage="bfloat16", prepare=int8)
ao_float8 = Precision(name="ao_float8", storage="bfloat16", prepare=float8)


def make():
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    return network, torch.randn(16, 64)
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("name", ["decoder_lm", "simple_conv"])
def test_a_network_in_every_emulated_precision_has_errors_and_a_verdict_but_no_time(
    name: str, phase: str, tmp_path: Path
) -> None:
    words = ["run", name, "--preset", "tiny", "--phase", phase, "--precision", ",".join(["fp32", *EMULATED])]
    trains = ["--optimizer", "adamw:lr=1e-3"] if phase == "training" else []
    assert main([*words, *trains, "--rounds", "1", "--results", str(tmp_path)]) == 0
    frame = ampbench.load(tmp_path).set_index("precision")
    measured = frame.loc[EMULATED].dropna(subset="output_rel_l2")
    missing = {"inference": {"bf16_stochastic", "bf16_kahan"}, "training": {"int8_weights"}}[phase]
    assert set(EMULATED) - set(measured.index) == missing
    assert measured["seconds_median"].isna().all()
    assert measured["output_rel_l2"].between(1e-4, 1).all()
    assert set(measured["verdict"]) <= {"ok", "refused"}
    assert measured["verdict_code"].notna().all()
    assert frame.loc["nvfp4", "output_rel_l2"] > frame.loc["float8_row", "output_rel_l2"]


@pytest.mark.slow
def test_torchaos_own_modules_are_measured_and_int8_errs_as_the_emulated_one(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    (tmp_path / "own.py").write_text(TORCHAO)
    names = "fp32,ao_int8,ao_float8,int8_weights"
    words = ["run", f"{tmp_path}/own.py:make", "--phase", "inference", "--precision", names, "--rounds", "1"]
    subprocess.run([sys.executable, "-m", "ampbench", *words, "--results", str(tmp_path)], check=True)
    frame = ampbench.load(tmp_path).set_index("precision")
    assert frame.loc[["ao_int8", "ao_float8"], "seconds_median"].gt(0).all()
    assert frame.loc["ao_int8", "output_rel_l2"] == pytest.approx(frame.loc["int8_weights", "output_rel_l2"], rel=0.5)
    assert frame.loc["ao_float8", "output_rel_l2"] > frame.loc["ao_int8", "output_rel_l2"]
