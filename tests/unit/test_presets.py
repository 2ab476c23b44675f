"""Presets: which fields an entry overrides, which it keeps, and that each preset is valid with the fields its page asks
for."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from relay.cli.group import relay
from relay.config import presets
from relay.config.presets import Preset, all_presets, find_preset, merged
from relay.config.receivers_file import ReceiversFile, parse_receivers_file, raw_entry, receivers_schema
from relay.config.redacted_entry import field_changes
from relay.domain.errors import UserError
from relay.domain.expression import CALLBACK, Document
from relay.domain.template import tree, url_of, value_of
from tests.documents import ROOT, fences
from tests.expecting import present

ENDPOINT: Final = "https://ci.example/api/start"
ROUTING: Final = frozenset(
    {"lane", "partitions", "ordering", "enabled", "owner", "senders", "sources", "event_types", "filter"}
)


def receiver(text: str) -> ReceiversFile:
    return parse_receivers_file(f"receivers: {{ci: {{post_endpoint: '{ENDPOINT}', {text}}}}}")


def mistakes(text: str) -> list[str]:
    with pytest.raises(UserError) as raised:
        parse_receivers_file(text)
    return str(raised.value).splitlines()


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets of this test: `x` in versions 1 and 2, and the source `s`."""
    first = {"timeout": 3, "headers": {"Accept": "a", "X-B": "b"}, "poll": {"base": 1, "cap": 9}}
    second = {
        "request": {"form": {"A": "1"}, "query": {"q": "1"}},
        "status_steps": [{"url": "x/${{message.id}}", "until": "true"}],
    }
    source = {"inbound": {"kind": "github"}, "callback": {"url": "https://a.example/", "timeout": 3}}
    monkeypatch.setattr(
        presets,
        "all_presets",
        lambda: (
            Preset("s", 1, "source", "A source.", source, ""),
            Preset("x", 2, "receiver", "A receiver.", second, ""),
            Preset("x", 1, "receiver", "A receiver.", first, ""),
        ),
    )


def test_an_entry_overrides_single_fields(made_up: None) -> None:
    entry = receiver("preset: x@1, headers: {accept: own}, poll: {base: 2}").receivers["ci"]
    assert entry.headers == {"X-B": "b", "accept": "own"}
    assert (entry.timeout, entry.poll.base, entry.poll.cap) == (3.0, 2.0, 9.0)


def test_a_bare_name_means_the_newest_version(made_up: None) -> None:
    assert receiver("preset: x").receivers["ci"].request is not None
    assert receiver("preset: x@1").receivers["ci"].request is None


def test_a_body_is_replaced_as_a_whole(made_up: None) -> None:
    request = present(receiver("preset: x, request: {json: {b: 2}}").receivers["ci"].request)
    assert (request.json_, request.form, request.query) == ({"b": 2}, None, {"q": "1"})
    request = present(receiver("preset: x, request: {form: {b: '2'}}").receivers["ci"].request)
    assert request.form == {"b": "2"}


def test_the_old_form_of_a_status_endpoint_takes_the_place_of_the_steps(made_up: None) -> None:
    entry = receiver(f"preset: x, status_endpoint: '{ENDPOINT}/1'").receivers["ci"]
    assert (entry.status_steps, entry.status_endpoint) == ((), f"{ENDPOINT}/1")


def test_an_entry_keeps_what_was_written(made_up: None) -> None:
    written = {"preset": "x@1", "post_endpoint": ENDPOINT, "headers": {"accept": "own"}, "poll": {"base": 2.0}}
    entry = receiver("preset: x@1, headers: {accept: own}, poll: {base: 2s}").receivers["ci"]
    assert raw_entry(entry) == written
    assert entry.model_fields_set == set(written)
    source = parse_receivers_file("sources: {s: {preset: s, inbound: {secret: a}, callback: {bearer_token: t}}}")
    assert raw_entry(source.sources["s"]) == {
        "preset": "s",
        "inbound": {"secret": "a"},
        "callback": {"bearer_token": "t"},
    }


def test_references_in_an_entry_with_a_preset_are_resolved(made_up: None) -> None:
    known = receiver("preset: x@1, headers: {X-Token: '${TOKEN}'}")
    receivers, _ = known.resolve({"TOKEN": "t0"})
    assert dict(receivers["ci"].post.headers) == {"Accept": "a", "X-B": "b", "X-Token": "t0"}
    assert receivers["ci"].poll.cap == 9.0
    assert "t0" in receivers["ci"].post.secrets


def test_a_difference_is_one_of_the_written_fields(made_up: None) -> None:
    one, other = (raw_entry(receiver(f"preset: x@{version}").receivers["ci"]) for version in (1, 2))
    assert [(each.field, each.old, each.new) for each in field_changes(one, other)] == [("preset", "x@1", "x@2")]


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("xx", "unknown preset 'xx'; did you mean 'x'?"),
        ("travis", "unknown preset 'travis'; known: x"),
        ("x@3", "unknown version of a preset: 'x@3'; known: x@2, x@1"),
        ("s", "unknown preset 's'; known: x"),
        ("7", "7 is not text; put it in quotes"),
    ],
)
def test_an_unknown_preset_is_one_line(made_up: None, name: str, mistake: str) -> None:
    text = f"receivers: {{ci: {{preset: {name}, post_endpoint: '{ENDPOINT}'}}}}"
    assert mistakes(text) == [f"receivers.yaml: receivers.ci.preset: {mistake}"]
    if name != "7":
        assert len(mistakes(f"receivers: {{ci: {{preset: {name}}}}}")) == 1


def test_the_schema_lists_the_presets_of_each_kind(made_up: None) -> None:
    parts: Any = receivers_schema()["$defs"]
    listed = [parts[name]["properties"]["preset"]["anyOf"][0]["enum"] for name in ("ReceiverEntry", "SourceEntry")]
    assert listed == [["x", "x@1", "x@2"], ["s", "s@1"]]


def test_arguments_are_not_changed() -> None:
    preset, own = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merged(preset, own) == {"a": {"b": 1, "c": 2}}
    assert (preset, own) == ({"a": {"b": 1}}, {"a": {"c": 2}})


# --- those of the package ---


@pytest.mark.parametrize("preset", all_presets(), ids=lambda preset: preset.id)
def test_a_preset_needs_only_place_and_credential(preset: Preset) -> None:
    if preset.kind == "receiver":
        receiver(f"preset: {preset.id}, bearer_token: t").resolve({})
    else:
        text = f"sources: {{s: {{preset: {preset.id}, inbound: {{secret: a}}, callback: {{bearer_token: t}}}}}}"
        parse_receivers_file(text).resolve({})


@pytest.mark.parametrize("preset", all_presets(), ids=lambda preset: preset.id)
def test_a_preset_does_not_route(preset: Preset) -> None:
    """A process of another release, which may not know the preset, routes to the receiver nevertheless."""
    assert not ROUTING & preset.entry.keys()
    assert preset.about.endswith(".")


def test_the_newest_version_of_each_system_is_there() -> None:
    receivers = {each.name for each in all_presets() if each.kind == "receiver"}
    assert receivers == {"buildbot", "buildkite", "circleci", "github-actions", "gitlab", "jenkins"}
    assert {each.name for each in all_presets() if each.kind == "source"} == {"gitea", "github", "gitlab"}


@pytest.mark.parametrize("name", ["github", "gitea", "gitlab"])
@pytest.mark.parametrize(
    ("outcome", "reason", "body", "expected"),
    [
        ("accepted", "", {"state": "created"}, ("pending", "Accepted", None)),
        ("running", "", None, ("pending", "Running", None)),
        ("failed", "exhausted", {"state": "success"}, ("error", "Not delivered: exhausted", None)),
        ("failed", "answer_timeout", None, ("error", "No result: answer_timeout", None)),
        ("failed", "receiver_forgot", None, ("error", "No result: receiver_forgot", None)),
        (
            "answered",
            "",
            {"state": "failure", "description": "d" * 200, "url": "https://ci.example/1"},
            ("failure", "d" * 140, "https://ci.example/1"),
        ),
        ("answered", "", {"state": "failure", "log": "l" * 60_000}, ("failure", "Done", None)),
        ("answered", "", {"state": "failure", "description": "d" * 60_000}, ("failure", "d" * 140, None)),
        ("answered", "", {"state": "failure", "tests": [{"name": "n"}] * 3_000}, ("failure", "Done", None)),
        ("answered", "", {"state": "passed"}, ("success", "Done", None)),
        ("answered", "", {"state": "failure", "description": None, "url": None}, ("failure", "Done", None)),
        ("answered", "", {"state": "failure", "description": 7, "url": "builds/7"}, ("failure", "Done", None)),
        ("answered", "", "plain text", ("success", "Done", None)),
        ("delivered", "", None, ("success", "Done", None)),
    ],
)
def test_a_commit_status_is_made_of_any_result(
    name: str, outcome: str, reason: str, body: object, expected: tuple[object, ...]
) -> None:
    made = commit_status(name, {"outcome": outcome, "reason": reason}, {"status": 200, "body": body})
    state, *rest = expected
    if name == "gitlab":
        state = "running" if outcome == "running" else {"failure": "failed", "error": "failed"}.get(str(state), state)
    assert [made["state"], made["description"], made["target_url"]] == [state, *rest]
    assert made["name" if name == "gitlab" else "context"] == "relay/ci"


@pytest.mark.parametrize(("name", "failure"), [("github", "failure"), ("gitea", "failure"), ("gitlab", "failed")])
def test_an_answer_with_the_status_of_an_error_is_a_failure_unless_it_has_a_state(name: str, failure: str) -> None:
    answered: dict[str, object] = {"outcome": "answered", "reason": ""}
    assert commit_status(name, answered, {"status": 422, "body": None})["state"] == failure
    assert commit_status(name, answered, {"status": 422, "body": {"state": "success"}})["state"] == "success"


def commit_status(name: str, delivery: dict[str, object], answer: dict[str, object]) -> Any:
    """The body of the request that the preset's callback makes of a result."""
    form = find_preset(name, "source").entry["callback"]["request"]["json"]
    variables = {
        "delivery": {"receiver": "ci", **delivery},
        "answer": {"content_type": "", **answer},
        "keep": {"ref": "main"},
    }
    return value_of(tree(form, CALLBACK, "callback.request.json"), variables)


COMMIT: Final = "6dcb09b5b57875f334f61aebed695e2e4193db5e"


@pytest.mark.parametrize("name", ["github", "gitea"])
@pytest.mark.parametrize(
    ("payload", "called"),
    [
        ({"after": COMMIT}, True),
        ({"after": "1" * 40, "pull_request": {"head": {"sha": COMMIT}}}, True),
        ({"ref": "refs/tags/v1", "after": "7" * 40, "head_commit": {"id": COMMIT}}, True),  # an annotated tag's object
        ({"ref": "refs/heads/main", "after": COMMIT, "head_commit": None}, True),
        ({"after": "0" * 40, "deleted": True, "head_commit": None}, False),
        ({"action": "opened", "issue": {"number": 1}}, False),
        ({"after": None}, False),
    ],
)
def test_only_an_event_with_a_commit_gets_a_status(name: str, payload: dict[str, object], called: bool) -> None:
    origin = "https://api.github.com" if name == "github" else "https://gitea.com/api/v1"
    repository = {
        "full_name": "acme/app",
        "statuses_url": f"{origin}/repos/acme/app/statuses/{{sha}}",
        "html_url": "https://gitea.com/acme/app",
    }
    _, url = kept_and_url(name, payload | {"repository": repository})
    assert url == (f"{origin}/repos/acme/app/statuses/{COMMIT}" if called else "")


@pytest.mark.parametrize(
    ("payload", "project", "ref"),
    [
        ({"ref": "refs/heads/fix/a", "after": COMMIT, "checkout_sha": COMMIT}, 15, "fix/a"),
        ({"ref": "refs/tags/v1", "after": "7" * 40, "checkout_sha": COMMIT}, 15, "v1"),  # an annotated tag's object
        ({"ref": "refs/heads/a", "after": "0" * 40, "checkout_sha": None}, None, "a"),
        (
            {"object_attributes": {"source_project_id": 7, "source_branch": "fix", "last_commit": {"id": COMMIT}}},
            7,
            "fix",
        ),
        (  # the fork is gone
            {"object_attributes": {"source_project_id": None, "source_branch": "fix", "last_commit": {"id": COMMIT}}},
            15,
            "fix",
        ),
        ({"object_attributes": {"source_project_id": 7, "source_branch": "fix", "last_commit": None}}, None, "fix"),
        ({"object_attributes": {"id": 31, "status": "success"}, "commit": {"id": COMMIT}}, None, ""),  # of a pipeline
    ],
)
def test_a_commit_at_gitlab_gets_its_status_in_its_project(
    payload: dict[str, object], project: int | None, ref: str
) -> None:
    root = "https://gitlab.com/git"
    there = {"id": 15, "web_url": f"{root}/acme/app", "path_with_namespace": "acme/app"}
    kept, url = kept_and_url("gitlab", payload | {"project": there})
    assert url == ("" if project is None else f"{root}/api/v4/projects/{project}/statuses/{COMMIT}")
    assert kept["ref"] == ref


def kept_and_url(name: str, payload: dict[str, object]) -> tuple[dict[str, object], str]:
    """What the preset keeps of a payload, and the URL of its callback."""
    entries = {"sources": {"s": {"preset": name, "inbound": {"secret": "x"}, "callback": {"bearer_token": "x"}}}}
    _, sources = parse_receivers_file(json.dumps(entries)).resolve({})
    keep, callback = sources["s"].keep, sources["s"].callback
    assert keep is not None
    assert callback is not None
    assert callback.request is not None
    assert callback.request.url is not None
    kept = {key: each.evaluate({"payload": payload}) for key, each in keep.items()}
    assert callback.request.url.text({"keep": {}}) == ""  # of a payload that is not JSON, nothing is kept
    return kept, callback.request.url.text({"keep": kept})


def test_the_command_lists_and_shows_them() -> None:
    listed = CliRunner().invoke(relay, ["presets", "list", "-o", "json"])
    assert [each["name"] for each in json.loads(listed.output)] == [preset.id for preset in all_presets()]
    assert "circleci@1" in CliRunner().invoke(relay, ["presets", "list"]).output
    assert CliRunner().invoke(relay, ["presets", "show", "circleci"]).output == find_preset("circleci@1").text
    shown = json.loads(CliRunner().invoke(relay, ["presets", "show", "circleci", "-o", "json"]).output)
    assert shown["entry"] == find_preset("circleci").entry
    for kind in ("receiver", "source"):
        shown = json.loads(CliRunner().invoke(relay, ["presets", "show", "gitlab", "--for", kind, "-o", "json"]).output)
        assert (shown["for"], shown["entry"]) == (kind, find_preset("gitlab", kind).entry)
    wrong = CliRunner().invoke(relay, ["presets", "show", "circle"])
    assert isinstance(wrong.exception, UserError)
    assert "did you mean 'circleci'?" in str(wrong.exception)


def test_the_page_has_an_entry_of_at_most_eight_lines_for_each() -> None:
    found: dict[tuple[str, str], int] = {}
    for fence in fences(ROOT / "docs/ci.md"):
        if fence.language == "yaml":
            file = parse_receivers_file(fence.text)
            for name, entry in (*file.receivers.items(), *file.sources.items()):
                assert entry.preset is not None
                key = entry.PRESETS, entry.preset
                found[key] = max(found.get(key, 0), lines_of(fence.text, name))
    assert {key: lines for key, lines in found.items() if lines > 8} == {}
    assert found.keys() == {(preset.kind, preset.name) for preset in all_presets()}


def lines_of(text: str, name: str) -> int:
    """Of an entry, with the line that has its name."""
    match = present(re.search(rf"(?m)^  {name}:\n(?:    .*\n)+", text))
    return match[0].count("\n")


def test_the_check_of_a_file_names_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "receivers.yaml"
    file.write_text(f"receivers: {{ci: {{post_endpoint: '{ENDPOINT}', preset: jenkins}}}}")
    checked = CliRunner().invoke(relay, ["receivers", "check", str(file)])
    assert f"ci: preset jenkins; POST {ENDPOINT};" in checked.output, checked.output


BUILDBOT_RESULT: Final = {"jsonrpc": "2.0", "id": 1, "result": [7, {"1": 8}]}
TOO_MANY: Final = "Too many pipelines created in the last minute. Try again later."
LIMITED: Final = {"x-ratelimit-remaining": "0"}
SECONDARY: Final = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}


@pytest.mark.parametrize(
    ("name", "status", "headers", "body", "meaning"),
    [
        ("circleci", 201, {}, {"id": "x", "state": "pending"}, "accepted"),
        ("circleci", 200, {}, {"message": "Pipeline not triggered"}, "rejected"),
        ("circleci", 404, {}, {"message": "Project not found"}, "rejected"),
        ("circleci", 429, {"retry-after": "3"}, {}, None),
        ("jenkins", 201, {"location": "https://ci.example/queue/item/7/"}, "", "accepted"),
        ("jenkins", 303, {"location": "https://ci.example/queue/item/7/"}, "", "accepted"),
        ("jenkins", 201, {}, "", "rejected"),
        ("jenkins", 200, {}, "<html>a proxy's sign-in page", "rejected"),
        ("jenkins", 500, {}, "<html>", None),
        ("gitlab", 200, {}, "<html>a proxy's sign-in page", "rejected"),
        ("buildkite", 200, {}, "<html>a proxy's sign-in page", "rejected"),
        ("github-actions", 202, {}, "<html>", "rejected"),
        ("jenkins", 403, {}, "<html>", "rejected"),
        ("gitlab", 201, {}, {"id": 7}, "accepted"),
        ("gitlab", 401, {}, {"message": "401 Unauthorized"}, "rejected"),
        ("gitlab", 400, {}, {"message": {"base": [TOO_MANY]}}, "not_now"),
        ("gitlab", 400, {}, {"message": TOO_MANY}, "not_now"),
        ("gitlab", 400, {}, {"message": {"base": ["Reference not found"]}}, None),
        ("buildkite", 201, {}, {"number": 7}, "accepted"),
        ("buildkite", 422, {}, {"message": "Validation Failed"}, None),
        ("github-actions", 200, {}, {"run_url": "https://api.github.com/x"}, "accepted"),
        ("github-actions", 204, {}, "", "delivered"),
        ("github-actions", 403, LIMITED, {"message": "API rate limit exceeded"}, "not_now"),
        ("github-actions", 403, {"retry-after": "60"}, {"message": "secondary rate limit"}, "not_now"),
        ("github-actions", 403, {"x-ratelimit-remaining": "59"}, SECONDARY, "not_now"),
        ("github-actions", 403, {"x-ratelimit-remaining": "59"}, {"message": "Must have admin rights"}, "rejected"),
        ("github-actions", 403, {}, "<html>a proxy's page", "rejected"),
        ("github-actions", 404, {}, {"message": "Not Found"}, "rejected"),
        ("buildbot", 200, {}, BUILDBOT_RESULT, "accepted"),
        ("buildbot", 200, {}, "<html>a proxy's page", "rejected"),
        ("buildbot", 400, {}, {"error": {"message": "invalid"}}, "rejected"),
        ("buildbot", 502, {}, "<html>", None),
    ],
)
def test_what_a_response_means(
    name: str, status: int, headers: dict[str, str], body: object, meaning: str | None
) -> None:
    rules = receiver(f"preset: {name}").resolve({})[0]["ci"].outcomes
    variables = {"response": {"status": status, "headers": headers, "body": body}}
    assert next((rule.is_ for rule in rules if rule.when.is_true(variables)), None) == meaning


@pytest.mark.parametrize(
    ("name", "body", "state"),
    [
        (
            "jenkins",
            {"building": False, "result": "UNSTABLE", "fullDisplayName": "app #7", "url": "u", "number": 7},
            "failure",
        ),
        (
            "jenkins",
            {"building": False, "result": "ABORTED", "fullDisplayName": "app #7", "url": "u", "number": 7},
            "error",
        ),
        ("gitlab", {"id": 7, "status": "skipped", "web_url": "u"}, "success"),
        ("gitlab", {"id": 7, "status": "manual", "web_url": "u"}, "error"),
        ("buildkite", {"number": 7, "state": "blocked", "web_url": "u"}, "error"),
        ("buildkite", {"number": 7, "state": "passed", "blocked": True, "web_url": "u"}, "error"),
        ("buildkite", {"number": 7, "state": "passed", "blocked": False, "web_url": "u"}, "success"),
        ("github-actions", {"name": "CI", "id": 7, "conclusion": "timed_out", "html_url": "u"}, "failure"),
        ("github-actions", {"name": "CI", "id": 7, "conclusion": "startup_failure", "html_url": "u"}, "error"),
        ("github-actions", {"name": None, "id": 7, "conclusion": "success", "html_url": "u"}, "success"),
        ("buildbot", {"buildsets": [{"bsid": 7, "results": 1, "complete": True}]}, "success"),
        ("buildbot", {"buildsets": [{"bsid": 7, "results": 2, "complete": True}]}, "failure"),
        ("buildbot", {"buildsets": [{"bsid": 7, "results": 4, "complete": True}]}, "error"),
    ],
)
def test_an_answer_says_how_a_build_ended(name: str, body: object, state: str) -> None:
    step = receiver(f"preset: {name}").resolve({})[0]["ci"].status_steps[-1]
    made: Any = value_of(step.answer, {"body": body, "steps": [{}]})
    assert (made["state"], made["number"]) == (state, 7)


CUT: Final = (
    '{"id": "x", "url": "https://api.buildkite.com/v2/organizations/a/pipelines/b/builds/7",'
    ' "web_url": "https://buildkite.com/a/b/builds/7", "number"'
)


@pytest.mark.parametrize("body", [{"number": 7, "state": "scheduled"}, CUT])
def test_a_build_of_buildkite_is_followed_also_if_the_response_was_cut(body: object) -> None:
    step = receiver("preset: buildkite").resolve({})[0]["ci"].status_steps[0]
    assert value_of(step.url, {"response": {"body": body}}) == "builds/7?exclude_jobs=true"


@pytest.mark.parametrize(
    ("item", "finished", "url"),
    [
        ({"why": "In the quiet period"}, False, None),
        ({"cancelled": False, "executable": None}, False, None),  # it left the queue, and has not begun
        ({"cancelled": False, "executable": {"url": f"{ENDPOINT}/7/"}}, True, f"{ENDPOINT}/7/"),
        ({"cancelled": True, "executable": None}, True, f"{ENDPOINT}/queue/"),
        ({"cancelled": True}, True, f"{ENDPOINT}/queue/"),
    ],
)
def test_jenkins_is_followed_from_its_queue(item: dict[str, object], finished: bool, url: str | None) -> None:
    queue, build = receiver("preset: jenkins").resolve({})[0]["ci"].status_steps
    assert queue.until.is_true({"body": item, "response": {"status": 200}}) is finished
    if url is not None:
        step = {"status": 200, "body": item}
        variables = {"steps": [step], "response": {"headers": {"location": f"{ENDPOINT}/queue/"}}}
        asked = str(value_of(build.url, variables))
        assert asked.startswith(f"{url}api/json?tree=building,cancelled,fullDisplayName,number,result,url,")


def test_jenkins_is_followed_to_its_build_also_if_it_has_forgotten_the_item() -> None:
    item, build = receiver("preset: jenkins").resolve({})[0]["ci"].status_steps
    assert item.until.is_true({"response": {"status": 404}, "body": Document(b"<html>", "the body")})
    post = {"headers": {"location": "https://ci.example/queue/item/23/"}}
    known: dict[str, object] = {"response": post, "post": post, "steps": [{"status": 404, "body": "<html>"}]}
    job = "https://ci.example/job/app/"
    url = url_of(build.url, known, base=f"{job}buildWithParameters", origins=["https://ci.example"])
    assert url.startswith(f"{job}api/json?tree=")
    other = {"queueId": 3, "building": False, "result": "SUCCESS", "fullDisplayName": "app #6", "url": "u", "number": 6}
    its = {"queueId": 23, "building": True, "result": None, "fullDisplayName": "app #7", "url": "v", "number": 7}
    ended = its | {"building": False, "result": "FAILURE"}
    lists = [other] * 100, [other, its], [ended, *[other] * 99]
    assert [build.until.is_true({**known, "body": {"builds": each}}) for each in lists] == [False, False, True]
    made = value_of(build.answer, {**known, "body": {"builds": [*[other] * 99, ended]}})
    assert made == {"state": "failure", "description": "app #7: FAILURE", "url": "v", "number": 7}


WORKFLOW: Final = {
    "pipeline_id": "5034460f-c7c4-4c43-9457-de07e2029e7b",
    "id": "fda08377-fe7e-46b1-8992-3a7aaecac9c3",
    "project_slug": "gh/acme/app",
    "tag": None,
    "started_by": "03987f6a-4c27-4dc1-b6ab-c7e83bb3e713",
    "pipeline_number": 7,
    "created_at": "2026-11-29T04:24:29Z",
    "stopped_at": "2026-11-29T04:34:29Z",
}
"""Other fields of a workflow, as the reference of CircleCI's API has them."""


def test_a_build_of_jenkins_without_a_result_is_not_finished() -> None:
    build = receiver("preset: jenkins").resolve({})[0]["ci"].status_steps[-1]
    states = [(True, None), (True, "FAILURE"), (False, None), (False, "FAILURE")]
    finished = [build.until.is_true({"body": {"building": running, "result": result}}) for running, result in states]
    assert finished == [False, False, False, True]


@pytest.mark.parametrize(
    ("pipeline", "workflows", "finished", "state"),
    [
        ("created", [], False, None),
        ("created", ["success", "running"], False, None),
        ("created", ["success", "on_hold"], False, None),
        ("created", ["success", "not_run"], True, "success"),
        ("created", ["success", "failed"], True, "failure"),
        ("created", ["success", "canceled"], True, "error"),
        ("created", ["success"] * 20, True, "success"),
        ("errored", [], True, "error"),
    ],
)
def test_a_pipeline_of_circleci_is_all_of_its_workflows(
    pipeline: str, workflows: list[str], finished: bool, state: str | None
) -> None:
    step = receiver("preset: circleci").resolve({})[0]["ci"].status_steps[-1]
    of_pipeline = {"state": pipeline, "number": 7, "project_slug": "gh/acme/app"}
    variables = {
        "body": {"items": [WORKFLOW | {"name": f"w{at}", "status": status} for at, status in enumerate(workflows)]},
        "steps": [{"body": of_pipeline}],
    }
    assert step.until.is_true(variables) is finished
    if finished:
        made: Any = value_of(step.answer, variables)
        assert (made["state"], made["number"]) == (state, 7)


def rerun(status: str, number: int = 0, most: int | None = 2) -> dict[str, object]:
    """The automatic rerun after `number` failed workflows; 0: the original, which has no number."""
    found: dict[str, object] = {"name": "test", "status": status, "max_auto_reruns": most}
    return found | {"auto_rerun_number": number} if number else found


@pytest.mark.parametrize(
    ("workflows", "finished", "state", "description"),
    [
        ([rerun("failed")], False, None, None),  # its rerun begins at once, but is not listed yet
        ([rerun("running", 1), rerun("failed")], False, None, None),
        ([rerun("failed", 1), rerun("failed")], False, None, None),
        ([rerun("success", 1), rerun("failed")], True, "success", "test: success, test: failed"),
        ([rerun("failed", 1, most=1), rerun("failed", most=1)], True, "failure", "test: failed, test: failed"),
        ([rerun("canceled", 1), rerun("failed")], True, "error", "test: canceled, test: failed"),
        ([rerun("canceled")], True, "error", "test: canceled"),
        ([rerun("failed", most=None)], True, "failure", "test: failed"),
        ([rerun("success", 1), rerun("failed")] * 9, True, "success", ", ".join(["test: success, test: failed"] * 9)),
    ],
)
def test_an_automatic_rerun_at_circleci_counts_in_place_of_the_failed_workflow(
    workflows: list[dict[str, object]], finished: bool, state: str | None, description: str | None
) -> None:
    step = receiver("preset: circleci").resolve({})[0]["ci"].status_steps[-1]
    of_pipeline = {"state": "created", "number": 7, "project_slug": "gh/acme/app"}
    variables = {"body": {"items": [WORKFLOW | each for each in workflows]}, "steps": [{"body": of_pipeline}]}
    assert step.until.is_true(variables) is finished
    if finished:
        made: Any = value_of(step.answer, variables)
        assert (made["state"], made["description"]) == (state, description)
