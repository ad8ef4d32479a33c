"""Settings files: which one is found, what it may hold, how it is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from ampbench import settings
from ampbench.cli import main as program
from ampbench.errors import UsageError
from ampbench.settings import SettingsFile


def option(name: str, **changes: Any) -> click.Option:
    return click.Option([f"--{name}", name], **changes)


VERBS = {
    "run": {
        "rounds": option("rounds"),
        "precision": option("precision", multiple=True),
        "set": option("set_", multiple=True),
        "max_error": option("max_error"),
        "results": option("results"),
    },
    "show": {"max_error": option("max_error"), "results": option("results")},
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "source" / "deep").mkdir(parents=True)
    return tmp_path


WITH_PROGRAMS = {
    "ab": {"baseline": option("baseline", multiple=True), "candidate": option("candidate", multiple=True)},
    "report": {"baseline": option("baseline")},
}


def loaded(
    text: str, folder: Path, verbs: Mapping[str, Mapping[str, click.Option]] = VERBS
) -> dict[str, dict[str, object]]:
    (folder / "ampbench.toml").write_text(text)
    file = settings.find(folder)
    assert file is not None
    return {verb: settings.defaults(file, verb, verbs, options) for verb, options in verbs.items()}


def test_the_nearest_file_up_to_the_root_of_the_repository_counts(repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[tool.ampbench]\nresults = 'far'\n")
    found = settings.find(repository / "source" / "deep")
    assert found == SettingsFile(repository / "pyproject.toml", {"results": "far"})
    (repository / "source" / "ampbench.toml").write_text("results = 'near'\n")
    found = settings.find(repository / "source" / "deep")
    assert found is not None
    assert found.table == {"results": "near"}


def test_files_above_the_repository_are_not_read(repository: Path) -> None:
    (repository / "ampbench.toml").write_text("results = 'outside'\n")
    (repository / "source" / ".git").write_text("gitdir: elsewhere")
    assert settings.find(repository / "source" / "deep") is None


def test_outside_a_repository_only_the_current_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "ampbench.toml").write_text("results = 'x'\n")
    (tmp_path / "inner").mkdir()
    assert settings.find(tmp_path / "inner") is None
    assert settings.find(tmp_path) is not None


def test_ampbench_toml_comes_before_pyproject(repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[tool.ampbench]\nresults = 'a'\n")
    (repository / "ampbench.toml").write_text("results = 'b'\n")
    found = settings.find(repository)
    assert found is not None
    assert found.path.name == "ampbench.toml"


def test_a_key_at_the_top_holds_for_every_verb_that_has_it(repository: Path) -> None:
    assert loaded("rounds = 5\nresults = '/r'\n", repository) == {
        "run": {"results": "/r", "rounds": "5"},
        "show": {"results": "/r"},
    }


def test_a_verb_s_own_table_wins_over_the_top(repository: Path) -> None:
    assert loaded("results = '/r'\n[show]\nresults = '/own'\nmax-error = 0.5\n", repository) == {
        "run": {"results": "/r"},
        "show": {"results": "/own", "max_error": "0.5"},
    }


def test_a_repeatable_option_takes_a_list_or_one_value(repository: Path) -> None:
    assert loaded("[run]\nprecision = 'fp32'\nset = ['mlp.depth=2']\n", repository)["run"] == {
        "precision": ["fp32"],
        "set_": ["mlp.depth=2"],
    }


def test_a_results_folder_counts_from_the_settings_file(repository: Path) -> None:
    (repository / "ampbench.toml").write_text("results = 'bench/results'\n")
    file = settings.find(repository / "source")
    assert file is not None
    assert settings.defaults(file, "show", VERBS, VERBS["show"]) == {"results": str(repository / "bench" / "results")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reslts = 'x'", r"ampbench\.toml: unknown setting of all verbs 'reslts': did you mean results"),
        (
            "no_isolation = true",
            r"all verbs 'no_isolation': an option of one verb stands in \[VERB\]",
        ),
        ("[run]\nroudns = 5", r"ampbench\.toml: unknown setting of run 'roudns': did you mean rounds\?"),
        ("[shwo]\nresults = 'x'", r"unknown setting of all verbs 'shwo': did you mean show\?"),
        ("rounds = = 5", r"ampbench\.toml: not valid TOML: .*line 1"),
        ("rounds = " + "9" * 5000, r"ampbench\.toml: not valid TOML: Exceeds the limit"),
        ("rounds = " + "[" * 20_000, r"ampbench\.toml: its brackets or tables are nested too deep to be read"),
        ("run = 5", r"ampbench\.toml: run must be a table"),
        ("rounds = [1, 2]", r"rounds must be one value, not a list"),
        ("rounds = {a = 1}", r"rounds must be a value, not a table"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_file(text: str, message: str, repository: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        loaded(text, repository)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ab]\nbaseline = ['./x']", "baseline names a program to run: give --baseline on the command line"),
        ("candidate = './x'", "unknown setting of all verbs 'candidate'"),
    ],
)
def test_no_settings_file_names_a_program_to_run(text: str, message: str, repository: Path) -> None:
    with pytest.raises(UsageError, match=message):
        loaded(text, repository, WITH_PROGRAMS)


def test_the_options_that_settings_name_are_those_of_verbs() -> None:
    options = {verb: program.verb(verb).settable().keys() for verb in program.verbs()}
    assert all({*programs} <= options[verb] for verb, programs in settings.PROGRAMS.items())
    assert all(sum(name in keys for keys in options.values()) > 1 for name in settings.SHARED)


def test_the_tables_of_other_verbs_are_theirs_to_read(repository: Path) -> None:
    found = loaded("[run]\nrounds = 5\n[show]\nmax_error = 0.1\n", repository)
    assert found == {"run": {"rounds": "5"}, "show": {"max_error": "0.1"}}
