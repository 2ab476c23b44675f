"""Processes of the last release run its code only. Otherwise tests between two releases would test this release against
itself."""

from pathlib import Path

from tests.servers.process import RelayProcess
from tests.servers.release import Release
from tests.servers.release import last_release as last_release


def is_of(release: Release, file: Path) -> bool:
    return file.is_relative_to(Path(release.environ["PYTHONPATH"]).resolve())


async def test_a_process_of_the_last_release_runs_its_code(last_release: Release, tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text("import relay; print(relay.__file__)")
    async with RelayProcess(cwd=tmp_path, environ=last_release.environ, module="where") as process:
        output = await process.finish()
    assert process.returncode == 0, output
    assert is_of(last_release, Path(output.strip()))
