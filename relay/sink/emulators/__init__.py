"""Strict emulators of CI systems, for tests and as `relay sink --as NAME`: each accepts only what its original does."""

from collections.abc import Callable, Mapping
from typing import Final

from relay.sink.builds import Build, Builds, CiBehaviour, CiKnobs
from relay.sink.emulators.buildkite import Buildkite
from relay.sink.emulators.circleci import CircleCi
from relay.sink.emulators.emulator import TOKEN, Ci, Emulator
from relay.sink.emulators.github_actions import GitHubActions
from relay.sink.emulators.gitlab import GitLab
from relay.sink.emulators.jenkins import Jenkins

EMULATORS: Final[Mapping[str, Callable[[Builds, str], Ci]]] = {
    "circleci": CircleCi,
    "jenkins": Jenkins,
    "gitlab": GitLab,
    "buildkite": Buildkite,
    "github-actions": GitHubActions,
}
"""Emulators by the name of their preset."""

__all__ = ["EMULATORS", "TOKEN", "Build", "CiBehaviour", "CiKnobs", "Emulator"]
