"""Runs as Parquet: its rows and columns, and the message without pyarrow."""

import builtins

import pandas as pd
import pytest

import ampbench
from ampbench.cli.main import main
from ampbench.convert import RUN_COLUMNS
from ampbench.records.measured import Skip
from tests.stored_runs import COMPLETE, make_case, make_memory, make_round, write_run

FP32, BF16 = make_case("fp32"), make_case("bf16_autocast")
NEWER = "20260201T120000Z-bench-1f9a3d"


@pytest.fixture
def results(tmp_path):
    for factor, name in ((1, {}), (2, {"run": NEWER, "label": "newer", "commit": "c0ffee"})):
        rounds = [make_round(FP32, factor * (1 + number / 100) * 1e-3, number) for number in range(4)]
        skip = Skip(case_id=BF16.case_id, reason="unsupported")
        write_run(tmp_path, [FP32, BF16], *rounds, make_memory(FP32, 100), skip, COMPLETE, **name)
    return tmp_path


@pytest.fixture
def _without(monkeypatch):
    original = builtins.__import__

    def refuse(name, *given, **named):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return original(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("_without")
def test_without_pyarrow_one_line_says_what_to_install(results, tmp_path, capsys):
    file = tmp_path / "run.parquet"
    assert main(["convert", "latest", "--to", "parquet", "-o", str(file), "--results", str(results)]) == 2
    assert capsys.readouterr().err == 'ampbench: error: Parquet needs pyarrow: pip install "ampbench[parquet]"\n'
    assert not file.exists()


def test_parquet_has_the_rows_of_load(results, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (the extra parquet)")
    file = tmp_path / "run.parquet"
    runs = [str(path) for path in sorted((results / "runs").iterdir())]
    assert main(["convert", *runs, "--to", "parquet", "-o", str(file)]) == 0
    found, frame = parquet.read_table(file), ampbench.load(results)
    assert found.column_names == [*frame.columns, *RUN_COLUMNS]
    assert len(frame) == 4
    for name in frame.columns:
        assert found[name].to_pylist() == [None if pd.isna(value) else value for value in frame[name]]
