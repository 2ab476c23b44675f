"""The distributions that a relay needs: which, in what version by the lock, and what leads from one to the next."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements" / "dev.txt"
"""The lock with the extras, too; requirements/runtime.txt has none."""

_LOCKED: Final = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^\s;]+)(?P<files>(?:.*\\\n)+.*)", re.M)


@dataclass(frozen=True, slots=True)
class Locked:
    """`sha256`: of each file of this version that may be installed, in hex."""

    name: str
    version: str
    sha256: tuple[str, ...]


class ReleaseError(Exception):
    """The version or content to be released is not what it claims to be."""


def locked(text: str) -> dict[str, Locked]:
    """What a lock file has, by name. The names are in their canonical form."""
    return {
        match["name"]: Locked(
            match["name"], match["version"], tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", match["files"]))
        )
        for match in _LOCKED.finditer(text)
    }


def extras() -> dict[str, list[str]]:
    """The requirements of each extra of the relay, by its name; those that everybody gets are under ''."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def graph(requirements: Iterable[str]) -> dict[str, set[str]]:
    """The distributions that `requirements` lead to in this environment, each with those that it requires itself."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    to_see = list(_needed(requirements, ""))
    while to_see:
        requirement = to_see.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for one, extra in seen if one == name}:
            seen.add((name, extra))
            needed = list(_needed(distribution(name).requires or (), extra))
            found.setdefault(name, set()).update(canonicalize_name(one.name) for one in needed)
            to_see += needed
    return found


def _needed(requirements: Iterable[str], extra: str) -> Iterator[Requirement]:
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def as_locked(names: Iterable[str], lock: Mapping[str, Locked]) -> list[Locked]:
    """The entries of `names`, by name. Raises ReleaseError where this environment has another version than the lock."""
    for name in sorted(names):
        here = distribution(name).version
        if name not in lock or lock[name].version != here:
            told = lock[name].version if name in lock else "nothing"
            raise ReleaseError(f"{name} is {here} here, the lock says {told}: make setup")
    return [lock[name] for name in sorted(names)]
