"""The wheel as users get it, and an environment with the wheel and its requirements, without the checkout."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from release.distributions import graph

_HOOK = "import sys, hatchling.build as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def build(what: str, tree: Path, into: Path, **environ: str) -> Path:
    """The `wheel` or `sdist` of `tree`, built by PEP 517 with the tools of this environment."""
    into.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", _HOOK, f"build_{what}", str(into)],
        cwd=tree,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


def install(wheel: Path, into: Path, extras: Sequence[str] = (), base: str = sys.executable) -> Path:
    """Create an environment at `into` with `wheel`, its requirements and those of `extras`. Returns its `python`.
    `base`: the interpreter to use. Only the requirements that the wheel declares, and theirs, are linked, from this
    environment with its locked versions. Nothing is downloaded.
    """
    subprocess.run([base, "-m", "venv", "--symlinks", "--without-pip", str(into)], check=True)
    python = into / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    [packages] = into.glob("lib/python*/site-packages")
    [metadata] = packages.glob("webhook_relay-*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    asked = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    for name in graph([*asked, *_of_extras(asked, extras)]):
        _link(name, packages)
    return python


def _of_extras(asked: Sequence[str], extras: Sequence[str]) -> Iterator[str]:
    """The requirements among `asked` that belong to one of `extras`, without that condition."""
    for one in map(Requirement, asked):
        marker, one.marker = one.marker, None
        if marker is not None and any(marker.evaluate({"extra": extra}) for extra in extras):
            yield str(one)


def _link(name: str, packages: Path) -> None:
    """Link each file that the distribution `name` has in site-packages: others may have some in the same folders."""
    one = distribution(name)
    for file in one.files or ():
        if file.parts[0] != "..":
            link = packages / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(str(one.locate_file(file)))


def unpack(sdist: Path, into: Path) -> Path:
    """The tree in `sdist`, unpacked into the directory `into`."""
    into.mkdir()
    subprocess.run(["tar", "-xf", str(sdist), "-C", str(into)], check=True)
    [tree] = into.iterdir()
    return tree
