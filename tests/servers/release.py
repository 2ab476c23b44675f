"""The last release: its unpacked wheel, which runs with the dependencies that are installed here."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

_WHEELS: Final = Path(__file__).parents[1] / "fixtures" / "release"


class Release:
    """`environ`: variables with which a process runs this release."""

    def __init__(self, directory: Path) -> None:
        self.environ = {"PYTHONPATH": str(directory)}


@pytest.fixture(scope="session")
def last_release() -> Iterator[Release]:
    """Fails unless processes with its environment run its code instead of the checkout's."""
    [wheel] = _WHEELS.glob("*.whl")
    with TemporaryDirectory(prefix="release-") as directory:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(directory)
        release = Release(Path(directory))
        said = subprocess.run(
            [sys.executable, "-c", "import relay; print(relay.__file__)"],
            capture_output=True,
            check=True,
            text=True,
            cwd=directory,
            env=release.environ,
        )
        assert Path(said.stdout.strip()).is_relative_to(Path(directory).resolve()), said.stdout
        yield release
