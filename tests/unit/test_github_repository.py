"""The emulated GitHub's repository: what it accepts as a commit status, and what its payloads say."""

import json

import pytest

from relay.sink.github_repository import GitCommit, GitHubError, Repository


@pytest.fixture
def repo() -> Repository:
    return Repository(("master", "next"), lambda: 1_800_000_000.0)


@pytest.fixture
def commit(repo: Repository) -> GitCommit:
    return pushed(repo)


def pushed(of: Repository, branch: str = "master", message: str = "Fix") -> GitCommit:
    return of.commit(branch, message, "README.md")


def test_a_commit_without_statuses_is_pending(commit: GitCommit) -> None:
    assert commit.state() == "pending"


@pytest.mark.parametrize(
    ("states", "combined"),
    [
        (["pending"], "pending"),
        (["pending", "success"], "success"),
        (["success", "failure"], "failure"),
        (["pending", "error"], "failure"),
        (["failure", "success"], "success"),
    ],
)
def test_the_latest_status_of_a_context_counts(
    states: list[str], combined: str, repo: Repository, commit: GitCommit
) -> None:
    for number, state in enumerate(states):
        repo.add_status(commit.sha, {"state": state, "context": "CI" if number % 2 else "ci"})
    assert commit.state() == combined
    assert len(commit.latest()) == 1


def test_each_context_counts(repo: Repository, commit: GitCommit) -> None:
    repo.add_status(commit.sha, {"state": "success", "context": "a"})
    repo.add_status(commit.sha, {"state": "pending", "context": "b"})
    assert commit.state() == "pending"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ([], 400, "JSON object"),
        ({}, 422, '"state" wasn\'t supplied'),
        ({"state": 5}, 422, "5 is not a string"),
        ({"state": None}, 422, "is not a string"),
        ({"state": "green"}, 422, "Validation Failed"),
        ({"state": "success", "url": "x"}, 422, '"url" is not a permitted key'),
        ({"state": "success", "description": "x" * 141}, 422, "Validation Failed"),
        ({"state": "success", "context": "x" * 256}, 422, "Validation Failed"),
        ({"state": "success", "target_url": "ftp://ci.example"}, 422, "Validation Failed"),
    ],
)
def test_a_status_that_github_refuses(
    body: object, status: int, text: str, repo: Repository, commit: GitCommit
) -> None:
    with pytest.raises(GitHubError, match=text) as refused:
        repo.add_status(commit.sha, body)
    assert refused.value.status == status
    assert commit.statuses == []


@pytest.mark.parametrize("sha", ["abc", "0" * 40, "master", "../" * 5])
def test_a_status_needs_a_commit(repo: Repository, sha: str) -> None:
    with pytest.raises(GitHubError, match="No commit found for SHA"):
        repo.add_status(sha, {"state": "success"})


def test_a_status_may_lack_all_but_its_state(repo: Repository) -> None:
    status = repo.add_status(pushed(repo).sha, {"state": "error", "target_url": None, "description": "x" * 140})
    assert (status.context, status.target_url) == ("default", None)


def test_a_commit_gets_a_thousand_statuses_of_a_context(repo: Repository, commit: GitCommit) -> None:
    for _ in range(1000):
        repo.add_status(commit.sha, {"state": "pending", "context": "ci"})
    with pytest.raises(GitHubError) as refused:
        repo.add_status(commit.sha, {"state": "success", "context": "CI"})
    assert "maximum number of statuses" in refused.value.errors[0]["message"]
    repo.add_status(commit.sha, {"state": "success", "context": "other"})


def test_the_payload_of_a_push_names_the_commit_and_only_the_emulator(repo: Repository) -> None:
    first, second = pushed(repo), pushed(repo, message="More")
    event = json.loads(repo.push_event(second, "http://127.0.0.1:1"))
    assert (event["ref"], event["before"], event["after"]) == ("refs/heads/master", first.sha, second.sha)
    assert event["head_commit"]["message"] == "More"
    assert event["repository"]["statuses_url"] == f"http://127.0.0.1:1/repos/{repo.full_name}/statuses/{{sha}}"
    assert not [url for url in ("https://github.com", "https://api.github.com") if url in json.dumps(event)]


def test_a_file_that_exists_is_not_created_again(repo: Repository) -> None:
    body = {"message": "Fix", "content": "aGVsbG8="}
    assert repo.put_file("a.txt", body).branch == "master"
    with pytest.raises(GitHubError, match='"sha" wasn\'t supplied'):
        repo.put_file("a.txt", body)
    assert repo.put_file("a.txt", body | {"branch": "next"}).branch == "next"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"message": "Fix"}, 422),
        ({"message": "Fix", "content": "no base64"}, 422),
        ({"message": "Fix", "content": "aGVsbG8=", "branch": "gone"}, 404),
    ],
)
def test_a_file_that_github_refuses(repo: Repository, body: object, status: int) -> None:
    with pytest.raises(GitHubError) as refused:
        repo.put_file("a.txt", body)
    assert refused.value.status == status
