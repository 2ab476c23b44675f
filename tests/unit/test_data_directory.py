"""Where `relay dev` keeps its data, and what `--fresh` removes."""

import fcntl
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.cli.group import relay as command_line
from relay.domain.errors import UserError
from relay.embedded.directory import LOCK, check_form, clear, holds_data, user_directory, usual_directory

ENVIRON = {"XDG_DATA_HOME": "/data"}


def _used(directory: Path) -> Path:
    """A directory on which a relay has run."""
    (directory / "appendonlydir").mkdir(parents=True)
    (directory / "appendonlydir" / "log").write_text("records")
    check_form(directory)
    return directory


def test_each_folder_of_a_receivers_file_has_its_own(tmp_path: Path) -> None:
    for folder in ("tutorial", "deeper/tutorial"):
        (tmp_path / folder).mkdir(parents=True)
    first, second = (
        usual_directory(ENVIRON, tmp_path / name / "receivers.yaml") for name in ("tutorial", "deeper/tutorial")
    )
    assert first != second
    assert {path.parent for path in (first, second)} == {Path("/data/relay")}
    assert first.name.startswith("tutorial-")


def test_the_same_folder_has_the_same_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    named = [Path("receivers.yaml"), tmp_path / "other.yaml", tmp_path / "link" / "receivers.yaml"]
    assert len({usual_directory(ENVIRON, path) for path in named}) == 1


def test_a_folder_with_an_odd_name_is_a_plain_directory() -> None:
    assert usual_directory(ENVIRON, Path("/receivers.yaml")).name.startswith("root-")
    odd = usual_directory(ENVIRON, Path("/odd name/\n/../é/receivers.yaml")).name
    assert odd.isascii()
    assert "/" not in odd


def test_one_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write anywhere but to a read-only file system
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
    ended = CliRunner().invoke(command_line, ["dev", "--data-dir", str(tmp_path), "--port", "0"])
    assert str(ended.exception) == f"--data-dir: {tmp_path} cannot be written to; choose another"
    assert list(tmp_path.iterdir()) == []


def test_fresh_removes_what_earlier_runs_left(tmp_path: Path) -> None:
    directory = _used(tmp_path / "data")
    clear(directory)
    assert list(directory.iterdir()) == []
    clear(directory)
    clear(tmp_path / "not there")


def test_fresh_leaves_the_data_of_other_folders(tmp_path: Path) -> None:
    former = _used(user_directory({"XDG_DATA_HOME": str(tmp_path)}))
    other = _used(former / "other-01234567")
    clear(former)
    assert list(former.iterdir()) == [other]
    assert holds_data(other)


def test_fresh_removes_nothing_that_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(UserError, match="no data directory"):
        clear(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_fresh_removes_nothing_that_is_in_use(tmp_path: Path) -> None:
    directory = _used(tmp_path)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="end it first"):
            clear(directory)
    finally:
        os.close(lock)
    assert (directory / "appendonlydir" / "log").exists()


def test_a_current_directory_that_was_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="current directory does not exist"):
        usual_directory({}, Path("receivers.yaml"))
