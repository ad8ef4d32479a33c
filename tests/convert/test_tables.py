"""Runs as Parquet and in SQL: what is in the tables, what a query may not, and what is said without the libraries."""

import builtins
import json
import math
from importlib.util import find_spec

import pandas as pd
import pytest

import ampbench
from ampbench.base.metrics import COLUMNS
from ampbench.cli.main import main
from ampbench.convert.tables import RUNS, column_type
from ampbench.records.measured import Skip
from tests.stored_runs import COMPLETE, make_case, make_memory, make_round, write_run

FP32, BF16 = make_case("fp32"), make_case("bf16_autocast")
WITH_DUCKDB = pytest.mark.skipif(not find_spec("duckdb"), reason="DuckDB is not installed (the extra query)")
NEWER = "20260201T120000Z-bench-1f9a3d"


@pytest.fixture
def results(tmp_path):
    for factor, name in ((1, {}), (2, {"run": NEWER, "label": "newer", "commit": "c0ffee"})):
        rounds = [make_round(FP32, factor * (1 + number / 100) * 1e-3, number) for number in range(4)]
        skip = Skip(case_id=BF16.case_id, reason="unsupported")
        write_run(tmp_path, [FP32, BF16], *rounds, make_memory(FP32, 100), skip, COMPLETE, **name)
    return tmp_path


@pytest.fixture
def ask(results, capsys):
    def asked(sql, *arguments):
        code = main(["query", sql, "--results", str(results), *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return asked


@pytest.fixture
def _without(monkeypatch):
    original = builtins.__import__

    def refuse(name, *given, **named):
        if name.partition(".")[0] in ("duckdb", "pyarrow"):
            raise ImportError(name)
        return original(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("_without")
def test_without_the_libraries_one_line_says_what_to_install(results, ask, tmp_path, capsys):
    code, out, error = ask("SELECT 1")
    assert (code, out) == (2, "")
    assert error == 'ampbench: error: ampbench query needs DuckDB: pip install "ampbench[query]"\n'
    file = tmp_path / "run.parquet"
    assert main(["convert", "latest", "--to", "parquet", "-o", str(file), "--results", str(results)]) == 2
    assert capsys.readouterr().err == 'ampbench: error: Parquet needs pyarrow: pip install "ampbench[parquet]"\n'
    assert not file.exists()


def test_every_column_of_a_frame_has_the_type_of_its_table(results):
    frame = ampbench.load(results)
    for name in COLUMNS:
        assert (column_type(name) == "VARCHAR") == (frame[name].dtype == object)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "not text: name a file"),
        (["-o", "x.parquet", "--short"], "leave --short out"),
        (["-o", "x.parquet", "--metric", "time"], "leave --metric out"),
        (["-o", "x.parquet", "--baseline", "latest"], "leave --baseline out"),
        (["-o", "no/folder/x.parquet"], "cannot write"),
    ],
)
def test_what_parquet_cannot_do_is_said_before_anything_is_read(results, arguments, said, capsys, monkeypatch):
    monkeypatch.chdir(results)
    assert main(["convert", "latest", "--to", "parquet", "--results", ".", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_parquet_has_the_rows_of_load_and_their_units(results, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (the extra parquet)")
    file = tmp_path / "run.parquet"
    runs = [str(path) for path in sorted((results / "runs").iterdir())]
    assert main(["convert", *runs, "--to", "parquet", "-o", str(file), "-k", "bf16_autocast"]) == 0
    found, frame = parquet.read_table(file), ampbench.load(results)
    frame = frame[frame.case_id.str.contains("bf16_autocast")].reset_index(drop=True)
    assert found.column_names == list(frame.columns)
    assert len(frame) == 2
    assert found.schema.field("seconds_median").metadata == {b"unit": b"s"}
    for name in frame.columns:
        assert found[name].to_pylist() == [None if pd.isna(value) else value for value in frame[name]]
    assert main(["convert", "latest", "--to", "parquet", "-o", str(file), "-k", "none", "--results", str(results)]) == 5


@WITH_DUCKDB
def test_the_tables_have_every_row_and_column_of_load(ask, results):
    frame = ampbench.load(results)
    code, out, _ = ask("SELECT * FROM cases", "--json")
    rows = json.loads(out)
    assert code == 0
    assert list(rows[0]) == list(COLUMNS)
    for row, (_, expected) in zip(rows, frame.iterrows(), strict=True):
        assert row == {name: None if pd.isna(value) else value for name, value in expected.items()}


@WITH_DUCKDB
def test_runs_are_what_their_headers_say(ask):
    code, out, _ = ask("SELECT * FROM runs ORDER BY run", "--json")
    older, newer = json.loads(out)
    assert code == 0
    assert list(older) == list(RUNS)
    assert (older["label"], newer["label"], newer["commit"], newer["run"]) == ("", "newer", "c0ffee", NEWER)
    assert (newer["host"], newer["cpu_count"], newer["program"], newer["rounds"]) == ("bench", 2, "ampbench", 4)


@WITH_DUCKDB
def test_only_the_runs_that_are_named_are_asked(ask):
    assert json.loads(ask("SELECT count(*) AS n FROM runs", "--json", "latest")[1]) == [{"n": 1}]
    code, _, error = ask("SELECT 1", "nosuchrun")
    assert code == 2
    assert "unknown run" in error


@WITH_DUCKDB
def test_what_is_undefined_is_null(ask):
    sql = "SELECT count(seconds_median) AS n, count(*) AS every, max(seconds_median) AS most FROM cases"
    [row] = json.loads(ask(sql, "--json")[1])
    assert (row["n"], row["every"]) == (2, 4)
    assert math.isclose(row["most"], 2 * 1.015e-3)


@WITH_DUCKDB
def test_an_answer_is_printed_in_every_format(ask):
    values = "count(*) AS n, 1.5::DECIMAL(5, 2) AS x, [1, 2] AS l, 'nan'::DOUBLE AS f"
    sql = f"SELECT precision, {values} FROM cases GROUP BY 1 ORDER BY 1"
    assert json.loads(ask(sql, "--json")[1])[0] == {
        "precision": "bf16_autocast",
        "n": 2,
        "x": 1.5,
        "l": [1, 2],
        "f": None,
    }
    assert ask(sql, "--format", "csv")[1].splitlines()[0] == "precision,n,x,l,f"
    assert ask(sql, "--format", "markdown")[1].splitlines()[2].startswith("| bf16_autocast | 2 | 1.5 |")
    assert ask(sql)[1].split()[:5] == ["precision", "n", "x", "l", "f"]
    assert json.loads(ask("SELECT 1, 1", "--json")[1]) == [{"1": 1, "1_1": 1}]
    assert json.loads(ask("SELECT 1 AS a, 2 AS a, 3 AS a_1", "--json")[1]) == [{"a": 1, "a_2": 2, "a_1": 3}]
    assert ask("SELECT run FROM cases WHERE 1 = 0")[::2] == (0, "no row in 2 runs\n")
    assert json.loads(ask("SELECT run FROM cases WHERE 1 = 0", "--json")[1]) == []


@WITH_DUCKDB
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELCT 1", "syntax error"),
        ("SELECT seconds_mediam FROM cases", "unknown column 'seconds_mediam': did you mean seconds_median"),
        ("SELECT c.presicion FROM cases AS c", "unknown column 'presicion': did you mean precision"),
        ("SELECT * FROM run", "unknown table 'run': did you mean runs?"),
        ("SELECT * FROM given", "unknown table 'given': known: cases, runs"),
        ("SELECT sum(phase) FROM cases", "sum(VARCHAR)"),
        ("", "give one SELECT"),
        ("SELECT 1; SELECT 2", "give one SELECT"),
        ("DROP TABLE cases", "give one SELECT"),
        ("SET enable_external_access = true", "give one SELECT"),
        ("COPY (SELECT 1) TO 'mine.csv'", "give one SELECT"),
        ("ATTACH 'mine.db'", "give one SELECT"),
        ("INSTALL httpfs", "give one SELECT"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(ask, sql, said):
    code, out, error = ask(sql)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert said in error


@WITH_DUCKDB
@pytest.mark.parametrize("source", ["'{}'", "read_csv('{}')", "read_text('{}')", "read_blob('{}')", "glob('{}')"])
def test_no_file_can_be_read(ask, tmp_path, source):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    code, out, error = ask(f"SELECT * FROM {source.format(secret)}")
    assert (code, out, error.count("\n")) == (2, "", 1)


@WITH_DUCKDB
def test_variables_of_the_process_are_no_tables(ask):
    for name in ("frames", "types", "files"):
        assert ask(f"SELECT * FROM {name}")[0] == 2
