"""Arms: what may be typed, and commits checked out beside the files that are there."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ampbench import ab as arms_module
from ampbench.ab import ArmRequest, checked_out, left_out, parse_arm, selection_of, settings_of, source_in
from ampbench.errors import UsageError
from ampbench.records.case import WorkloadSource
from ampbench.records.run import Selection, Settings


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits, `first` tagged as such, which is the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number in ("1", "2"):
        (folder / "model.py").write_text(f"layers = {number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", number)
        if number == "1":
            git(folder, "tag", "first")
    monkeypatch.chdir(folder)
    return folder


def test_an_arm_is_an_interpreter_a_commit_and_settings_together() -> None:
    arm = parse_arm("--baseline", [sys.executable, "git:main", "OMP_NUM_THREADS=1", "precision=bf16_autocast"])
    assert (arm.python, arm.ref) == (sys.executable, "main")
    assert arm.settings == {"OMP_NUM_THREADS": "1", "precision": "bf16_autocast"}
    assert arm.variables == {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["no-such-python-anywhere"], "there is no such Python"),
        (["/no/such/python"], "there is no such Python"),
        ([sys.executable, sys.executable], "two interpreters"),
        (["git:a", "git:b"], "two commits"),
        (["A=1", "A=2"], "A is given twice"),
    ],
)
def test_what_is_no_arm_is_refused_with_what_one_is(given: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_arm("--candidate", given)


def test_settings_reach_the_selection_and_the_settings_of_their_arm() -> None:
    arm = parse_arm(
        "--baseline", ["threads=1", "precision=fp32", "scaler=false", "width=64", "X=1", "optimizer=sgd:lr=1"]
    )
    selection = selection_of(arm, Selection(precisions=["bf16_pure"], overrides={"depth": 2}))
    assert selection == Selection(
        precisions=["fp32"], overrides={"depth": 2, "scaler": False, "width": 64}, recipes=["optimizer=sgd,lr=1"]
    )
    assert settings_of(arm, Settings(threads=2)).threads == 1


@pytest.mark.parametrize("value", ["0", "many", "1.5", "-1"])
def test_a_number_of_threads_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="threads="):
        settings_of(parse_arm("--baseline", [f"threads={value}"]), Settings())


def test_a_commit_is_checked_out_beside_the_repository_and_gone_afterwards(repository: Path) -> None:
    arm = parse_arm("--baseline", ["git:first"])
    with checked_out("--baseline", arm) as checkout:
        assert checkout is not None
        assert (checkout.root / "model.py").read_text() == "layers = 1\n"
        assert (repository / "model.py").read_text() == "layers = 2\n"
        assert checkout.commit == git(repository, "rev-parse", "first")
        assert checkout.paths == [checkout.root]
    assert not checkout.root.exists()
    assert git(repository, "status", "--porcelain") == ""


def test_a_file_of_the_repository_is_that_of_the_commit(repository: Path) -> None:
    def source(module: Path | str) -> WorkloadSource:
        return WorkloadSource(name="m", family="user", module=str(module), function="make", builtin=False)

    with checked_out("--baseline", parse_arm("--baseline", ["git:first"])) as checkout:
        assert checkout is not None
        assert source_in(checkout, source(repository / "model.py")).module == str(checkout.root / "model.py")
        assert source_in(checkout, source("package.module")).module == "package.module"
        assert source_in(None, source("model.py")).module == "model.py"
        with pytest.raises(UsageError, match=r"commit .* has no file later\.py"):
            source_in(checkout, source(repository / "later.py"))


def arms(*refs: str) -> list[ArmRequest]:
    return [parse_arm("", [ref]) for ref in refs]


@pytest.mark.parametrize("refs", [("git:first", "git:main"), ("git:main", "git:main")])
def test_changes_that_no_arm_has_are_told(repository: Path, refs: tuple[str, str]) -> None:
    assert left_out(arms(*refs)) == ""
    (repository / "model.py").write_text("layers = 3\n")
    said = "neither arm has your uncommitted changes (1 file): here has the current files"
    assert left_out(arms(*refs)) == said
    assert left_out(arms(refs[0], "here")) == ""


def test_an_unknown_reference_is_refused_with_the_nearest(repository: Path) -> None:
    with pytest.raises(UsageError, match="did you mean first"), checked_out("--baseline", parse_arm("", ["git:frist"])):
        pass


def test_outside_a_repository_a_commit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with (
        pytest.raises(
            UsageError,
            match=r"^--baseline git:REF is a commit of .* current folder .* is in none \(not a git repository",
        ),
        checked_out("--baseline", parse_arm("", ["git:main"])),
    ):
        pass


@pytest.fixture
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary ones, which nobody else uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_an_interruption_while_a_commit_is_checked_out_leaves_nothing_behind(
    repository: Path, own_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = arms_module._git

    def interrupted(*arguments: str, **options: Any) -> str:
        found = done(*arguments, **options)
        if "checkout-index" in arguments:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(arms_module, "_git", interrupted)
    arm = parse_arm("--baseline", ["git:first"])
    with pytest.raises(KeyboardInterrupt), checked_out("--baseline", arm):
        pass
    monkeypatch.undo()
    assert list(own_temporary.iterdir()) == []
