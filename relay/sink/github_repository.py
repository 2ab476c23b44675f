"""A repository of the emulated GitHub: branches, commits with their statuses, and the payloads of its events.

Texts and bounds are those of docs.github.com/en/rest/commits/statuses and docs.github.com/en/rest/repos/contents.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from relay.sink.samples import load

STATES: Final = ("error", "failure", "pending", "success")
_MOST_STATUSES: Final = 1000
"""Per commit and context."""
_LONGEST_DESCRIPTION: Final = 140
_NEVER: Final = "0" * 40
_ORIGINS: Final = (b"https://api.github.com", b"https://github.com")


class GitHubError(Exception):
    """The request gets this status, with `message` and `errors` in the body."""

    def __init__(self, status: int, message: str, *errors: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = errors


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """A commit status. `created_at`: RFC 3339."""

    id: int
    state: str
    context: str
    target_url: str | None
    description: str | None
    created_at: str


@dataclass(frozen=True, slots=True)
class GitCommit:
    """A commit. `before`: the previous commit of its branch. `statuses`: oldest first."""

    sha: str
    before: str
    branch: str
    path: str
    message: str
    timestamp: str
    statuses: list[CommitStatus] = field(default_factory=list, compare=False)

    def latest(self) -> list[CommitStatus]:
        """The latest status of each context, which is compared without regard to case."""
        return list({status.context.lower(): status for status in self.statuses}.values())

    def state(self) -> str:
        """The state of the commit: failure, pending or success."""
        states = {status.state for status in self.latest()}
        if states & {"error", "failure"}:
            return "failure"
        return "success" if states == {"success"} else "pending"


class Repository:
    """The repository of the sample payloads, with other branches and commits. `clock` returns Unix seconds."""

    def __init__(self, branches: tuple[str, ...], clock: Callable[[], float]) -> None:
        self._sample: dict[str, Any] = msgspec.json.decode(load("github.push").payload)
        self._clock = clock
        self._status_count = 0
        self._files: set[tuple[str, str]] = set()
        self.full_name: str = self._sample["repository"]["full_name"]
        self.id: int = self._sample["repository"]["id"]
        self.heads: dict[str, str] = dict.fromkeys(branches, _NEVER)
        self.commits: dict[str, GitCommit] = {}

    def put_file(self, path: str, body: object) -> GitCommit:
        """Create a file, which is a commit on a branch. Raises GitHubError."""
        fields = _strings(body, required=("message", "content"), optional=("branch", "sha"))
        branch = fields.get("branch") or next(iter(self.heads))
        if branch not in self.heads:
            raise GitHubError(404, f"Branch {branch} not found")
        try:
            base64.b64decode(fields["content"], validate=True)
        except (binascii.Error, ValueError):
            raise GitHubError(422, "content is not valid Base64.") from None
        if (branch, path) in self._files and "sha" not in fields:
            raise GitHubError(422, 'Invalid request.\n\n"sha" wasn\'t supplied.')
        self._files.add((branch, path))
        return self.commit(branch, fields["message"], path)

    def commit(self, branch: str, message: str, path: str) -> GitCommit:
        """Add a commit to a branch that exists."""
        before = self.heads[branch]
        text = f"{len(self.commits)}\n{before}\n{branch}\n{path}\n{message}"
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        commit = GitCommit(sha, before, branch, path, message, self._now())
        self.commits[sha] = commit
        self.heads[branch] = sha
        return commit

    def find(self, ref: str) -> GitCommit:
        """The commit of a sha or branch. Raises GitHubError."""
        commit = self.commits.get(self.heads.get(ref.removeprefix("heads/"), ref))
        if commit is None:
            raise GitHubError(422, f"No commit found for SHA: {ref}")
        return commit

    def add_status(self, sha: str, body: object) -> CommitStatus:
        """Set a commit status. Raises GitHubError."""
        fields = _strings(body, required=("state",), optional=("target_url", "description", "context"))
        if not re.fullmatch(r"[0-9a-f]{40}", sha) or sha not in self.commits:
            raise GitHubError(422, f"No commit found for SHA: {sha}")
        commit, context = self.commits[sha], fields.get("context") or "default"
        _check_status(fields, context)
        if sum(status.context.lower() == context.lower() for status in commit.statuses) >= _MOST_STATUSES:
            raise _invalid("This SHA and context has reached the maximum number of statuses.")
        self._status_count += 1
        target, description = fields.get("target_url"), fields.get("description")
        status = CommitStatus(self._status_count, fields["state"], context, target, description, self._now())
        commit.statuses.append(status)
        return status

    def push_event(self, commit: GitCommit, origin: str) -> bytes:
        """The payload of the `push` event. `origin`: of the emulator, which all URLs of the payload then have."""
        repository = self._sample["repository"]
        entry = self._sample["head_commit"] | {
            "id": commit.sha,
            "message": commit.message,
            "timestamp": commit.timestamp,
            "url": f"https://github.com/{self.full_name}/commit/{commit.sha}",
            "added": [commit.path],
            "removed": [],
            "modified": [],
        }
        event = self._sample | {
            "ref": f"refs/heads/{commit.branch}",
            "before": commit.before,
            "after": commit.sha,
            "created": commit.before == _NEVER,
            "compare": f"https://github.com/{self.full_name}/compare/{commit.before[:12]}...{commit.sha[:12]}",
            "commits": [entry],
            "head_commit": entry,
            "repository": repository | {"pushed_at": int(self._clock())},
        }
        return _at(origin, event)

    def ping_event(self, hook: Mapping[str, Any], origin: str) -> bytes:
        """The payload of the `ping` event, which a new webhook gets."""
        sample: dict[str, Any] = msgspec.json.decode(load("github.ping").payload)
        repository = self._sample["repository"]
        return _at(origin, sample | {"hook_id": hook["id"], "hook": dict(hook), "repository": repository})

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _at(origin: str, event: object) -> bytes:
    payload = msgspec.json.encode(event)
    for public in _ORIGINS:
        payload = payload.replace(public, origin.encode())
    return payload


def _check_status(fields: Mapping[str, str], context: str) -> None:
    if fields["state"] not in STATES:
        raise _invalid("state is not included in the list", "state")
    if len(fields.get("description", "")) > _LONGEST_DESCRIPTION:
        raise _invalid(f"description is too long (maximum is {_LONGEST_DESCRIPTION} characters)", "description")
    if len(context) > 255:
        raise _invalid("context is too long (maximum is 255 characters)", "context")
    if not re.match(r"https?://", fields.get("target_url", "http://")):
        raise _invalid("target_url must use http(s) scheme", "target_url")


def _invalid(message: str, name: str | None = None) -> GitHubError:
    error = {"resource": "Status", "code": "custom"} | ({} if name is None else {"field": name})
    return GitHubError(422, "Validation Failed", error | {"message": message})


def _strings(body: object, *, required: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, str]:
    """The fields of a request's body, without those that are null. Raises GitHubError."""
    if not isinstance(body, dict):
        raise GitHubError(400, "Body should be a JSON object")
    for name, value in body.items():
        if name not in required + optional:
            raise GitHubError(422, f'Invalid request.\n\n"{name}" is not a permitted key.')
        if not isinstance(value, str) and (value is not None or name in required):
            raise GitHubError(422, f"Invalid request.\n\nFor 'properties/{name}', {value} is not a string.")
    for name in required:
        if name not in body:
            raise GitHubError(422, f'Invalid request.\n\n"{name}" wasn\'t supplied.')
    return {name: value for name, value in body.items() if value is not None}
