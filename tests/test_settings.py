"""Settings files: which one is found, what it may hold, how it is refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ampbench import settings
from ampbench.cli import main as program
from ampbench.errors import UsageError
from ampbench.settings import Option, SettingsFile

VERBS = {
    "run": {
        "rounds": Option("rounds", False),
        "precision": Option("precision", True),
        "set": Option("set_", True),
        "max_error": Option("max_error", False),
        "results": Option("results", False),
    },
    "show": {"max_error": Option("max_error", False), "results": Option("results", False)},
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "source" / "deep").mkdir(parents=True)
    return tmp_path


WITH_PROGRAMS = {
    "ab": {"baseline": Option("baseline", True), "candidate": Option("candidate", True)},
    "report": {"baseline": Option("baseline", False)},
}


def loaded(text: str, folder: Path, verbs: Mapping[str, Mapping[str, Option]] = VERBS) -> dict[str, dict[str, object]]:
    (folder / "ampbench.toml").write_text(text)
    file = settings.find(folder)
    assert file is not None
    known = {option for verb, options in verbs.items() for option in options.keys() - settings.PROGRAMS.get(verb, ())}
    return {verb: settings.defaults(file, verb, verbs, verbs.__getitem__, known) for verb in verbs}


def test_there_may_be_no_settings(repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert settings.find(repository / "source") is None


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
    assert loaded("max-error = 0.01\nrounds = 5\n", repository) == {
        "run": {"max_error": 0.01, "rounds": 5},
        "show": {"max_error": 0.01},
    }


def test_a_verb_s_own_table_wins_over_the_top(repository: Path) -> None:
    assert loaded("max_error = 0.01\n[show]\nmax-error = 0.5\n", repository) == {
        "run": {"max_error": 0.01},
        "show": {"max_error": 0.5},
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
    assert settings.defaults(file, "show", VERBS, VERBS.__getitem__) == {
        "results": str(repository / "bench" / "results")
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reslts = 'x'", r"ampbench\.toml: unknown setting 'reslts': did you mean results"),
        ("[run]\nroudns = 5", r"ampbench\.toml: unknown setting of run 'roudns': did you mean rounds\?"),
        ("[shwo]\nresults = 'x'", r"unknown setting 'shwo': did you mean show\?"),
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


def test_bytes_that_are_not_text_are_refused(repository: Path) -> None:
    (repository / "ampbench.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not valid TOML"):
        settings.find(repository)


def test_a_tool_table_that_is_no_table_is_refused(repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[tool]\nampbench = 5\n")
    with pytest.raises(UsageError, match=r"must be a table"):
        settings.find(repository)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("[ab]\nbaseline = ['./x']", "baseline"),
        ("candidate = './x'", "candidate"),
    ],
)
def test_no_settings_file_names_a_program_to_run(text: str, option: str, repository: Path) -> None:
    flag = f"--{option.replace('_', '-')}"
    with pytest.raises(UsageError, match=f"{option} names a program to run, which no settings file may: say {flag}"):
        loaded(text, repository, WITH_PROGRAMS)


def test_a_key_at_the_top_that_names_a_program_to_one_verb_alone_is_set_for_the_others(repository: Path) -> None:
    found = loaded("baseline = 'v1'", repository, WITH_PROGRAMS)
    assert {verb: values for verb, values in found.items() if values} == {"report": {"baseline": "v1"}}


def test_the_options_that_settings_may_not_give_exist() -> None:
    assert all(named <= program.options_of(verb).keys() for verb, named in settings.PROGRAMS.items())


def test_the_keys_that_settings_know_are_options_and_those_of_all_verbs_but_of_some_studies() -> None:
    found = {verb: program.options_of(verb).keys() - settings.PROGRAMS.get(verb, ()) for verb in program._verbs()}
    alone = {key for verb, keys in found.items() if verb.partition(" ")[0] not in program.GROUPS for key in keys}
    assert alone <= settings.KEYS <= {key for keys in found.values() for key in keys}


def test_a_key_that_settings_do_not_know_is_set_for_the_verbs_that_have_it(repository: Path) -> None:
    (repository / "ampbench.toml").write_text("tempo = 'fast'\nrounds = 5\n")
    file = settings.find(repository)
    assert file is not None
    verbs = {**VERBS, "made": {"tempo": Option("tempo", False)}}
    found = {verb: settings.defaults(file, verb, verbs, verbs.__getitem__) for verb in verbs}
    assert found["made"] == {"tempo": "fast"}
    assert found["run"] == {"rounds": 5}
    with pytest.raises(UsageError, match="unknown setting 'tempo'"):
        settings.defaults(file, "run", VERBS, VERBS.__getitem__)


def test_the_tables_of_other_verbs_are_looked_into_only_for_what_no_verb_has(repository: Path) -> None:
    asked: list[str] = []

    def options_of(verb: str) -> Mapping[str, Option]:
        asked.append(verb)
        return VERBS[verb]

    (repository / "ampbench.toml").write_text("rounds = 5\nmax_error = 0.1\n[run]\nset = ['mlp.depth=2']\n")
    file = settings.find(repository)
    assert file is not None
    assert settings.defaults(file, "show", VERBS, options_of) == {"max_error": 0.1}
    assert asked == ["show"]
    (repository / "ampbench.toml").write_text("[run]\nroudns = 5\n")
    file = settings.find(repository)
    assert file is not None
    with pytest.raises(UsageError, match="unknown setting of run 'roudns': did you mean rounds"):
        settings.defaults(file, "show", VERBS, options_of)
