"""receivers.yaml: valid entries, the error for each mistake, and that secrets do not leak into it."""

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import PydanticUndefined

from relay.config.entry_types import check_url
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import load_receivers_file, parse_receivers_file, raw_entry, receivers_schema, resolve
from relay.config.references import usable_variables
from relay.config.strict_yaml import parse_mapping
from relay.domain.errors import UserError
from relay.domain.receiver import (
    BatchPolicy,
    BreakerPolicy,
    Coalescing,
    Endpoint,
    Inbound,
    OfflinePolicy,
    PollPolicy,
    Quota,
    Receiver,
    RetryPolicy,
    SigningPolicy,
    Source,
    StatusMap,
)
from tests.expecting import present

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOT_USABLE = "is not set, or RELAY_SECRETS_FROM does not allow it"
EXAMPLE = Path(__file__).parents[2] / "receivers.yaml"

FULL = """
sources:
  github:
    callback: {url: "https://sender.example/results", secret: "${GITHUB_SECRET}", retry_after: 10m}
    answers: non_empty
    failures: false
  gitlab: {callback: kafka}
  "*":
receivers:
  circleci:
    post_endpoint: https://ci.example/hooks
    status_endpoint: https://ci.example/hooks/{message_id}
    secret: ["${NEW}", "${OLD}"]
    signature: github
    signature_digest: sha512
    bearer_token: "${TOKEN}"
    headers: {X-Team: "team-${TEAM}"}
    rate_limit: 100
    window_size: 500ms
    max_in_flight: 8
    ordering: none
    coalesce: {key: /ref, window: 10s}
    partitions: 3
    retry: {base: 1, factor: 3, cap: 2h, max_attempts: 4, max_age: 1d}
    timeout: 7
    breaker: {failures: 3, window: 30, open_for: 10}
    offline: {after: 5m, ping_every: 30s, disable_after: 2d}
    poll: {base: 1, factor: 2, cap: 30}
    status: {pointer: /status, done: [success, failed], running: [pending], unknown: [not_found], result: /result}
    on_ambiguous: dead_letter
    answer: required
    answer_deadline: 30m
    codes: {gone: [404], rejected: [409, 423]}
    sources: ["github"]
    event_types: ["push", "pull_request.*"]
    payload: metadata
    respond_async: 5s
    enabled: false
    owner: auth0|team-42
    labels: {env: production, example.com/tier: "1"}
  small: {post_endpoint: "https://small.example/", lane: shared}
"""
ENVIRON = {"GITHUB_SECRET": SECRET, "NEW": "new", "OLD": "old", "TOKEN": "t-1", "TEAM": "core"}


def test_every_field_reaches_the_receiver() -> None:
    receivers, _ = parse_receivers_file(FULL).resolve(ENVIRON)
    assert receivers["circleci"] == Receiver(
        name="circleci",
        post=Endpoint(
            url="https://ci.example/hooks",
            signing=SigningPolicy(("github",), ("new", "old"), "sha512"),
            rate_limit=100,
            window_size=0.5,
            max_in_flight=8,
            retry=RetryPolicy(1, 3, 7200, 4, 86_400),
            timeout=7,
            breaker=BreakerPolicy(3, 30, 10, OfflinePolicy(300, 30, 172_800)),
            headers=(("X-Team", "team-core"), ("authorization", "Bearer t-1")),
            codes={404: "gone", 409: "rejected", 423: "rejected"},
        ),
        status_endpoint="https://ci.example/hooks/{message_id}",
        status_map=StatusMap("/status", ("success", "failed"), ("pending",), ("not_found",), "/result"),
        poll=PollPolicy(1, 2, 30),
        answer="required",
        answer_deadline=1800,
        on_ambiguous="dead_letter",
        ordering="none",
        coalesce=Coalescing("/ref", 10),
        lane="dedicated",
        partitions=3,
        sources=("github",),
        event_types=("push", "pull_request.*"),
        payload="metadata",
        respond_async=5,
        enabled=False,
        owner="auth0|team-42",
        labels=(("env", "production"), ("example.com/tier", "1")),
    )


def test_what_is_left_out_has_the_default_of_the_domain() -> None:
    receivers, _ = parse_receivers_file(FULL).resolve(ENVIRON)
    assert receivers["small"] == Receiver("small", Endpoint("https://small.example/"), lane="shared")


def test_a_source_has_the_defaults_of_the_domain() -> None:
    text = "sources: {plain: {}, hooks: {callback: {url: https://s.example/}, inbound: {kind: github, secret: s}}}"
    _, sources = parse_receivers_file(text).resolve({})
    assert sources["plain"] == Source("plain")
    assert sources["hooks"] == Source("hooks", Endpoint("https://s.example/"), inbound=Inbound("github"))


@pytest.mark.parametrize(
    ("written", "styles"),
    [
        ("[standard, github]", ("standard", "github")),
        ("[stripe]", ("stripe",)),
        ("http-message", ("http-message",)),
        ("github", ("github",)),
        ("standard", ("standard",)),
        ("none", ()),
    ],
)
def test_a_signature_is_a_style_or_several(written: str, styles: tuple[str, ...]) -> None:
    secret = "" if written == "none" else "secret: s, "
    text = f"receivers: {{ci: {{post_endpoint: 'https://ci.example/', {secret}signature: {written}}}}}"
    receivers, _ = parse_receivers_file(text).resolve({})
    assert receivers["ci"].post.signing.styles == styles


def test_the_default_of_a_cap_does_not_cut_a_longer_base_short() -> None:
    steps = "[{url: 'https://r.example/job', until: 'true', poll: {base: 3m}}]"
    fields = f"retry: {{base: 2h}}, poll: {{base: 5m}}, status_steps: {steps}"
    receivers, _ = parse_receivers_file(f"receivers: {{r: {{post_endpoint: 'https://r.example/', {fields}}}}}").resolve(
        {}
    )
    found = receivers["r"]
    assert found.post.retry == RetryPolicy(base=7_200, cap=7_200)
    assert found.poll == PollPolicy(base=300, cap=300)
    assert found.status_steps[0].poll == PollPolicy(base=180, cap=180)


def test_sources_reach_the_domain_too() -> None:
    _, sources = parse_receivers_file(FULL).resolve(ENVIRON)
    callback = Endpoint(
        "https://sender.example/results",
        signing=SigningPolicy(("standard",), (SECRET,)),
        retry=RetryPolicy(base=600, factor=1, cap=600, jitter=False),
    )
    assert sources == {
        "github": Source("github", callback, answers="non_empty", failures=False),
        "gitlab": Source("gitlab", kafka=True),
        "*": Source("*"),
    }


def test_the_example_of_the_project_can_be_used_as_it_is() -> None:
    receivers, sources = load_receivers_file(EXAMPLE).resolve({})
    assert list(receivers) == ["ci"]
    assert list(sources) == ["*"]


def test_a_batch_has_the_defaults_of_the_domain() -> None:
    text = "receivers: {r: {post_endpoint: 'https://r.example/', rate_limit: 9, rate_limit_unit: events, batch: %s}}"
    for written, policy in (
        ("{}", BatchPolicy()),
        ("{max_events: 100, max_bytes: 1MiB, linger: 200ms, format: cloudevents}", BatchPolicy()),
        ("{max_events: 5, max_bytes: 4096, linger: 0, format: list}", BatchPolicy(5, 4096, 0.0, "list")),
    ):
        receivers, _ = parse_receivers_file(text % written).resolve({})
        assert receivers["r"].batch == policy
        assert receivers["r"].rate_limit_unit == "events"


def test_what_the_example_has_in_comments_is_right_and_shows_the_defaults() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    commented = present(re.search(r"(?ms)^  # circleci:.*", text))
    file = parse_receivers_file("receivers:\n" + re.sub(r"(?m)^  # ?", "  ", commented[0]))
    written = file.receivers["circleci"]
    excluded = set(re.findall(r"(?m)^  #   # (\w+):", commented[0]))  # fields that others of the example exclude
    assert written.model_fields_set | excluded == set(ReceiverEntry.model_fields), "receivers.yaml has all fields"
    for name in written.model_fields_set:
        default = ReceiverEntry.model_fields[name].default
        assert default in (None, (), PydanticUndefined, getattr(written, name)), name
    assert written.retry_policy() == RetryPolicy()


def test_how_webhooks_come_in_is_understood_and_its_secrets_stay_here() -> None:
    text = """
sources:
  gh: {inbound: {kind: github, secret: ["${NEW}", written-out], receivers: [ci]}}
  own:
    inbound: {kind: generic, secret: x, header: X-Sig, digest: sha512, encoding: base64, prefix: "v=", id_header: Id}
  slow: {inbound: {kind: stripe, secret: x, tolerance: 10m, redelivery: never}}
"""
    file = parse_receivers_file(text)
    _, sources = file.resolve({"NEW": "new"})
    github = present(sources["gh"].inbound)
    assert github == Inbound("github", receivers=("ci",))
    assert github.secrets == ("new", "written-out")
    own = Inbound("generic", header="X-Sig", digest="sha512", encoding="base64", prefix="v=", id_header="Id")
    assert sources["own"].inbound == own
    assert sources["slow"].inbound == Inbound("stripe", tolerance_s=600.0, redelivery="never")
    assert "written-out" not in repr(sources) + json.dumps(file.sealed.sources)
    with pytest.raises(UserError, match=r"sources\.gh\.inbound\.secret\[0\]: the environment variable NEW is not set"):
        file.resolve({})
    with pytest.raises(UserError, match="is empty"):
        file.resolve({"NEW": ""})


def test_a_source_has_a_quota_none_or_says_nothing_of_it() -> None:
    file = parse_receivers_file("sources: {a: {quota: 6000/1m}, b: {quota: 10 / 5}, c: {quota: none}, d: {}}")
    _, sources = file.resolve({})
    assert [sources[name].quota for name in "abcd"] == [Quota(6000, 60), Quota(10, 5), "none", None]
    assert file.sealed.sources["a"] == {"quota": "6000/1m"}


def test_what_the_example_says_of_webhooks_is_right() -> None:
    commented = present(re.search(r"(?ms)^  # github:.*?^$", EXAMPLE.read_text(encoding="utf-8")))
    file = parse_receivers_file("sources:\n" + re.sub(r"(?m)^  # ?", "  ", commented[0]))
    entry = present(file.sources["github"].inbound)
    assert (entry.kind, entry.secret, entry.receivers) == ("github", "${GITHUB_WEBHOOK_SECRET}", ("ci",))


EC_KEY = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}
"""RFC 7515, A.3."""


def _entry(**fields: object) -> str:
    return yaml.safe_dump({"receivers": {"ci": {"post_endpoint": "https://ci.example/", **fields}}})


RECEIVER_MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"orderng": "source"}, "orderng: unknown field; did you mean 'ordering'?"),
    ({"ordering": "fifo"}, "ordering: 'fifo' is not allowed; allowed: 'source', 'receiver' or 'none'"),
    ({"ordering": {"by": "fifo"}},
     "ordering.by: expected source, receiver, none, a JSON pointer such as /repository/full_name, or header:NAME"),
    ({"coalesce": {"key": "/a"}}, "coalesce.window: required, but missing"),
    ({"coalesce": {"key": "source", "window": 5}},
     "coalesce.key: expected a JSON pointer such as /repository/full_name, or header:NAME"),
    ({"ordering": {"by": "/a~b"}},
     "ordering.by: '/a~b' is not a JSON pointer; a ~ in a name is written ~0, and a / is ~1"),
    ({"rate_limit": "100"}, "rate_limit: '100' is not a whole number"),
    ({"rate_limit": 0}, "rate_limit: 0 is too small; at least 1"),
    ({"rate_limit": True}, "rate_limit: true is not a whole number"),
    ({"enabled": "on"}, "enabled: 'on' is not allowed; allowed: true, false"),
    ({"timeout": "soon"},
     "timeout: 'soon' is not a duration; give a number of seconds, or a number with a unit: 500ms, 15s, 10m, 1h, 2d"),
    ({"timeout": 0}, "timeout: 0 is too small; it has to be more than 0"),
    ({"post_endpoint": "ftp://ci.example/"}, "post_endpoint: not a URL; write it as https://host/path"),
    ({"post_endpoint": 7}, "post_endpoint: 7 is not text; put it in quotes"),
    ({"post_endpoint": "https://u:p@ci.example/"},
     "post_endpoint: a URL must not have a user name or password; use bearer_token or headers"),
    ({"post_endpoint": "https://ci.example/#a"}, "post_endpoint: a URL must not have a fragment (#...)"),
    ({"post_endpoint": "https://[fe80::1%25eth0]/"},
     "post_endpoint: the URL's host has an IPv6 zone or percent-encoding"),
    ({"post_endpoint": "https://ci..example/"}, "post_endpoint: the URL's host or port is malformed"),
    ({"status_endpoint": "https://1.2.3.4.5/{message_id}"},
     "status_endpoint: the URL's host ends in a number but is not an IPv4 address"),
    ({"status_endpoint": "https://{response.host}/x"},
     "status_endpoint: placeholders of the status endpoint belong after the host, not into it"),
    ({"status_endpoint": "https://ci.example/{id}"},
     "status_endpoint: unknown placeholder {id} in status endpoint; known are {message_id}, {source_id}, "
     "{webhook_id} and {response.<field>}"),
    ({"secret": "whsec_AAAA"}, "secret: the secret has 3 bytes after whsec_; 24 to 64 are allowed"),
    ({"secret": ["${A}", ""]}, "secret[1]: the secret is empty"),
    ({"secret": 12}, "secret: the value is not text; put it in quotes"),
    ({"secret": "${MY-SECRET}"}, "secret: a ${...} in it does not name an environment variable; write it as ${NAME}"),
    ({"secret": "${SECRET"}, "secret: a ${ in it is not closed; write it as ${NAME}"),
    ({"secret": "${{ secrets.CI }}"},
     "secret: has no expressions; ${NAME}, with one brace, is a variable of the environment"),
    ({"headers": {"x-key": "Token ${{ secrets.CI }}"}},
     "headers.x-key: has no expressions; ${NAME}, with one brace, is a variable of the environment"),
    ({"tls": {"client_cert": "/etc/relay.pem"}}, "tls.client_cert: unknown field; did you mean 'client_certificate'?"),
    ({"signature": "github"}, "signature: 'github' needs a secret to sign with"),
    ({"signature": ["standard", "github"]}, "signature: 'standard' needs a secret to sign with"),
    ({"signature": [], "secret": "s"}, "signature: at least 1 needed"),
    ({"signature": ["github", "standard", "github"], "secret": "s"},
     "signature: 'github' is listed twice: it would sign one header twice"),
    ({"signature": ["standard", "none"], "secret": "s"},
     "signature[1]: 'none' is not allowed; allowed: 'standard', 'github', 'stripe' or 'http-message'"),
    ({"signature": ["standard", "github"], "secret": "s", "headers": {"X-Hub-Signature-256": "mine"}},
     "headers.X-Hub-Signature-256: 'X-Hub-Signature-256' is set by the relay itself"),
    ({"signature": "none", "secret": "s"}, "signature: 'none' contradicts the secret; leave one of the two out"),
    ({"secret": "s", "signature_digest": "md5"},
     "signature_digest: 'md5' is not allowed; allowed: 'sha256' or 'sha512'"),
    ({"signature_digest": "sha512"},
     "signature_digest: there is no signature: it needs a secret, and a style other than 'none'"),
    ({"signature": "http-message"}, "signature: 'http-message' needs a secret to sign with"),
    ({"secret": "s", "signature": "http-message", "signature_digest": "sha512"},
     "signature_digest: 'sha512' contradicts signature: 'http-message' has no HMAC with SHA-512"),
    ({"secret": "s", "signature": ["standard", "http-message"], "headers": {"Content-Digest": "x"}},
     "headers: 'content-digest' contradicts signature: 'http-message' sets it; leave one of the two out"),
    ({"secret": "s", "signature": "http-message", "request": {"headers": {"Signature": "x"}}},
     "request: 'signature' contradicts signature: 'http-message' sets it; leave one of the two out"),
    ({"respond_async": "1500ms"}, "respond_async: 1.5 s is not a whole number of seconds, which the header has"),
    ({"respond_async": 15}, "respond_async: 15 s is not less than timeout, 15 s, which ends the request"),
    ({"respond_async": 5, "headers": {"Prefer": "wait=1"}},
     "respond_async: contradicts headers, which set 'prefer'; leave one of the two out"),
    ({"batch": {"max_events": 0}}, "batch.max_events: 0 is too small; at least 1"),
    ({"batch": {"max_bytes": "1 kilo"}},
     "batch.max_bytes: '1 kilo' is not a size; give a number of bytes, or 64KiB, 1MiB"),
    ({"batch": {"format": "xml"}}, "batch.format: 'xml' is not allowed; allowed: 'cloudevents' or 'list'"),
    ({"batch": {}, "payload": "thin"},
     "batch: contradicts payload: 'thin' is the form of one message; leave one of the two out"),
    ({"batch": {}, "encrypt": {"jwk": EC_KEY}},
     "batch: contradicts encrypt, which encrypts the body of one message; leave one of the two out"),
    ({"batch": {}, "request": {"text": "${{ payload.a }}"}},
     "batch: contradicts request, whose form has one message; leave one of the two out"),
    ({"batch": {}, "outcomes": [{"when": "response.status == 201", "is": "accepted"}]},
     "batch: contradicts outcomes, whose conditions are about one message; leave one of the two out"),
    ({"batch": {}, "forward_headers": ["x-team"]},
     "batch: contradicts forward_headers, which are headers of one message; leave one of the two out"),
    ({"batch": {}, "status_endpoint": "https://ci.example/{response.id}"},
     "batch: contradicts status_endpoint, which needs the response to one message; leave one of the two out"),
    ({"batch": {}, "rate_limit_unit": "events"},
     "rate_limit_unit: is the unit of rate_limit, and there is none: give a rate_limit, or leave this out"),
    ({"rate_limit": 5, "rate_limit_unit": "events"},
     "rate_limit_unit: makes a difference only with batch, and there is none: give a batch, or leave this out"),
    ({"encrypt": {}}, "encrypt.jwks_url: give either jwk or jwks_url"),
    ({"encrypt": {"jwk": EC_KEY, "jwks_url": "https://ci.example/jwks"}},
     "encrypt.jwks_url: give either jwk or jwks_url"),
    ({"encrypt": {"jwk": {**EC_KEY, "use": "sig"}}},
     "encrypt.jwk: use is 'sig'; a key for encryption has 'enc', or none"),
    ({"encrypt": {"jwk": [EC_KEY, {"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}},
     "encrypt.jwk[1]: the RSA key has 17 bits; allowed are 2048 to 8192"),
    ({"encrypt": {"jwk": []}}, "encrypt.jwk: at least 1 needed"),
    ({"encrypt": {"jwk": EC_KEY}, "request": {"text": "${{ payload.a }}"}},
     "encrypt: contradicts request, whose expressions may send parts of the payload; leave one out"),
    ({"encrypt": {"jwk": EC_KEY}, "payload": "thin"},
     "encrypt: contradicts payload: 'thin' sends none of it; leave one out"),
    ({"payload": "slim"}, "payload: 'slim' is not allowed; allowed: 'full', 'thin' or 'metadata'"),
    ({"payload": "thin", "request": {"json": {"ref": "${{ payload.ref }}"}}},
     "payload: 'thin' contradicts request, whose expressions may send the payload; leave one out"),
    ({"retry": {}, "retry_after": 600}, "retry_after: short form of retry; leave one of the two out"),
    ({"retry": {"max_atempts": 3}}, "retry.max_atempts: unknown field; did you mean 'max_attempts'?"),
    ({"outcomes": [{"when": "true", "is": "gone", "iss": "gone"}]},
     "outcomes[0].iss: unknown field; did you mean 'is'?"),
    ({"status_steps": [{"url": "https://ci.example/", "until": "true", "answer": {"json": 1, "body": 2}}]},
     "status_steps[0].answer.body: unknown field; known: json"),
    ({"retry": {"base": 60, "cap": "30s"}}, "retry.cap: 30 s is less than base, 60 s"),
    ({"breaker": 3}, "breaker: 3 is not a mapping of names to values"),
    ({"breaker": None}, "breaker: is empty; leave it out, or give it a value"),
    ({"event_types": [True]}, "event_types[0]: true is not text; put it in quotes"),
    ({"event_types": [None]}, "event_types[0]: is empty; leave it out, or give it a value"),
    ({"offline": {"ping_every": "500ms"}}, "offline.ping_every: '500ms' is too small; at least 1"),
    ({"offline": {"ping_every": "1d"}}, "offline.ping_every: '1d' is too big; at most 43200"),
    ({"offline": {"disable_after": "10m"}}, "offline.disable_after: 600 s is not more than after, 600 s"),
    ({"codes": {"gone": [99]}}, "codes.gone[0]: 99 is too small; at least 200"),
    ({"codes": {"gone": [404], "rejected": [404]}}, "codes.gone: 404 is listed under rejected as well"),
    ({"partitions": 10_000}, "partitions: 10000 is too big; at most 1000"),
    ({"lane": "shared", "partitions": 2},
     "partitions: the shared lane has its own partitions; leave this out, or use 'lane: dedicated'"),
    ({"ordering": {"by": "receiver"}, "partitions": 2},
     "partitions: 'ordering: receiver' sends one message at a time and needs exactly one partition"),
    ({"ordering": "receiver", "partitions": 2},
     "partitions: 'ordering: receiver' sends one message at a time and needs exactly one partition"),
    ({"sources": ["github"]},
     "event_types: sources and event_types subscribe together; give both or neither ('*' stands for all)"),
    ({"sources": ["*hub"], "event_types": ["*"]},
     "sources[0]: '*hub' is not a pattern; write the exact text, or a prefix followed by *"),
    ({"sources": "github", "event_types": ["*"]}, "sources: 'github' is not a list; write [a, b]"),
    ({"headers": {"a b": "c"}}, "headers.a b: 'a b' is not the name of a header"),
    ({"headers": {"Webhook-Id": "c"}}, "headers.Webhook-Id: 'Webhook-Id' is set by the relay itself"),
    ({"headers": {"x-a": "b\r\nx-c: d"}},
     "headers.x-a: the value of a header is printable ASCII, without spaces around it"),
    ({"headers": {"Authorization": "a"}, "bearer_token": "b"},
     "headers: 'authorization' contradicts bearer_token; leave one of the two out"),
    ({"status": {"pointer": "/s", "done": ["x"]}}, "status: needs a status_endpoint to poll"),
    ({"status_endpoint": "https://ci.example/", "status": {"pointer": "s", "done": ["x"]}},
     "status.pointer: 's' is not a JSON pointer; it begins with /"),
    ({"status_endpoint": "https://ci.example/", "status": {"done": []}},
     "status.pointer: required, but missing\nreceivers.yaml: receivers.ci.status.done: at least 1 needed"),
    ({"owner": ""}, "owner: an owner is an id of 1 to 64 of a-z, A-Z, 0-9 and . _ : @ | / + = ~ -"),
    ({"owner": "o" * 65}, "owner: an owner is an id of 1 to 64 of a-z, A-Z, 0-9 and . _ : @ | / + = ~ -"),
    ({"owner": "${TEAM}"}, "owner: an owner is an id of 1 to 64 of a-z, A-Z, 0-9 and . _ : @ | / + = ~ -"),
    ({"labels": {"a=b": "c"}}, "labels.a=b: a label's name has 1 to 64 of a-z, A-Z, 0-9 and . _ / -"),
    ({"labels": {"secret": "c"}}, "labels.secret: 'secret' is reserved for secrets; labels are not secret"),
    ({"labels": {"a": "b\nc"}},
     "labels.a: a label's value has at most 64 of a-z, A-Z, 0-9, space and . _ : @ | / + = ~ -"),
    ({"labels": {f"l{n}": "" for n in range(17)}}, "labels: 17 labels; at most 16"),
    ({"rate_limit": 10**30}, f"rate_limit: {10**30} is too big; at most 1000000000"),
    ({"timeout": 1e300},
     "timeout: longer than 100 years, the longest duration; give a number of seconds, or a number with a unit: "
     "500ms, 15s, 10m, 1h, 2d"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), RECEIVER_MISTAKES)
def test_a_mistake_in_a_receiver(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_receivers_file(_entry(**fields))
    assert str(caught.value) == f"receivers.yaml: receivers.ci.{message}"


def test_json_may_write_an_emoji_as_two_escapes() -> None:
    assert parse_mapping(r'{"about": "\ud83d\ude80 go"}', "a.json") == {"about": "\U0001f680 go"}
    with pytest.raises(UserError, match=r"a\.json: line 1, column 11: a \\u escape is half of a character"):
        parse_mapping(r'{"about": "\ud83d go"}', "a.json")


FILE_MISTAKES = [
    ("receivers: !!timestamp x", "is not YAML that can be read: a !!timestamp that is none"),
    ("receivers: {ci: {}}", "receivers.ci.post_endpoint: required, but missing"),
    ("receivers: {ci: }", "receivers.ci: is empty; leave it out, or give it a value"),
    ("reciever: {}", "reciever: unknown field; did you mean 'receivers'?"),
    ("receivers: []", "receivers: a list is not a mapping of names to values"),
    ("- a", "has to be a mapping of names to values"),
    ("receivers: {shared: {post_endpoint: 'https://a.example'}}",
     "receivers.shared: 'shared' is the name of the shared lane; no receiver can have it"),
    ("receivers: {My_CI: {post_endpoint: 'https://a.example'}}",
     "receivers.My_CI: a receiver's name has 1 to 63 of a-z, 0-9 and -, and does not begin with -"),
    ("receivers: {12: {post_endpoint: 'https://a.example'}}", "receivers.12: a name has to be text; put it in quotes"),
    ("receivers: {2026-01-31: {post_endpoint: 'https://a.example'}}",
     "receivers.2026-01-31: a name has to be text; put it in quotes"),
    ("receivers: {true: {post_endpoint: 'https://a.example'}}",
     "receivers.true: a name has to be text; put it in quotes"),
    ("sources: {gh: {callback: {url: 2026-01-31}}}",
     "sources.gh.callback.url: 2026-01-31 is not text; put it in quotes"),
    ("receivers: [a\n", "line 2, column 1: expected ',' or ']', but got '<stream end>': the [ in line 1 is not closed"),
    ("receivers:\n  ci: {a: 1\n",
     "line 3, column 1: expected ',' or '}', but got '<stream end>': the { in line 2 is "
     "not closed"),
    ("receivers:\n  ci: {a: ${{ message.id }}}\n",
     "line 2, column 12: expected ',' or '}', but got '{': a text with "
     "braces, such as ${{ message.id }}, needs quotes"),
    ("receivers:\n  ci\n    timeout: 1\n",
     "line 3, column 12: a colon too many, or one is missing at the end of the "
     "line before; a text with ': ' needs quotes"),
    ("receivers:\n  ci:\n    timeout: 1\n   partitions: 2\n", "line 4, column 4: indented like no line above it"),
    ("receivers: {}\n---\nreceivers: {}\n", "line 2, column 1: a second document begins; a file has one"),
    ("receivers: *secret\n", "line 1, column 12: found undefined alias ********"),
    ("receivers: !secret {}\n", "line 1, column 12: begins with !, which is a tag of YAML; put it in quotes"),
    ("receivers:\n  a:\n    timeout: 1\n    timeout: 2\n", "receivers.a.timeout: written twice, again in line 4"),
    ("receivers:\n  a:\n    rate_limit: 010\n",
     "line 3, column 17: a number that begins with 0, which YAML takes "
     "for an octal one; write it without the 0, or in quotes if it is a text"),
    ("receivers:\n  a:\n    window_size: 1:30\n",
     "line 3, column 18: a number with a colon, which YAML takes for "
     "one to the base of 60; write it in seconds, or in quotes if it is a text"),
    ("receivers:\n\tci: {}\n", "line 2, column 1: a tab; YAML is indented with spaces"),
    ("receivers:\n  a: 'b\n  c: 1\n",
     "line 4, column 1: found unexpected end of stream: the quote in line 2 is not"
     " closed"),
    ("receivers: {a: [", "line 1, column 17: expected the node content, but found '<stream end>'"),
    ("a: \x07", "unacceptable character #x0007: special characters are not allowed"),
    ("sources: {gh: {callback: http}}",
     "sources.gh.callback: 'http' is not allowed; write a mapping with a url, or "
     "the word kafka"),
    ("sources: {gh: {callback: {ur: 'https://a.example'}}}",
     "sources.gh.callback.url: required, but missing\n"
     "receivers.yaml: sources.gh.callback.ur: unknown field; did you mean 'url'?"),
    ("sources: {gh: {answer: all}}", "sources.gh.answer: unknown field; did you mean 'answers'?"),
    ("sources: {'': {}}", "sources.: source_id is missing or empty"),
    ("sources: {'*': {inbound: {kind: github, secret: s}}}",
     "sources: '*' cannot have inbound: its secret would be valid for every source; name the source"),
    ("sources: {gh: {inbound: {kind: github}}}", "sources.gh.inbound.secret: required, but missing"),
    ("sources: {gh: {inbound: {kind: github, secret: ''}}}",
     "sources.gh.inbound.secret: is empty; leave it out, or give it a value"),
    ("sources: {gh: {inbound: {kind: github, secret: []}}}", "sources.gh.inbound.secret: at least 1 needed"),
    ("sources: {gh: {inbound: {kind: githob, secret: s}}}",
     "sources.gh.inbound.kind: 'githob' is not allowed; allowed: 'github', 'gitlab', 'stripe', 'slack', "
     "'standard', 'cloudevents' or 'generic'"),
    ("sources: {gh: {inbound: {kind: github, secrets: s, secret: s}}}",
     "sources.gh.inbound.secrets: unknown field; did you mean 'secret'?"),
    ("sources: {gh: {inbound: {kind: standard, secret: whsec_YWJj}}}",
     "sources.gh.inbound.secret: the secret has 3 bytes after whsec_; 24 to 64 are allowed"),
    ("sources: {gh: {inbound: {kind: github, secret: s, receivers: []}}}",
     "sources.gh.inbound.receivers: at least 1 needed"),
    ("sources: {gh: {inbound: {kind: github, secret: s, tolerance: 5m}}}",
     "sources.gh.inbound.tolerance: this kind signs no time; only slack, standard, stripe do"),
    ("sources: {gh: {inbound: {kind: generic, secret: s}}}",
     "sources.gh.inbound.header: 'generic' needs the name of the header with the HMAC"),
    ("sources: {gh: {inbound: {kind: generic, secret: s, header: 'X Sig'}}}",
     "sources.gh.inbound.header: 'X Sig' is not the name of a header"),
    ("sources: {gh: {inbound: {kind: github, secret: s, header: X-Sig}}}",
     "sources.gh.inbound.header: 'github' has a header of its own; leave this out"),
    ("sources: {gh: {inbound: {kind: cloudevents, secret: s, digest: sha1}}}",
     "sources.gh.inbound.digest: applies to the HMAC in a header; give that header's name in the field header"),
    ("sources: {gh: {inbound: {kind: github, secret: s, id_header: X-Id}}}",
     "sources.gh.inbound.id_header: 'github' defines where this is; leave it out"),
    ("sources: {gh: {quota: 100}}", "sources.gh.quota: 100 is not text; put it in quotes"),
    ("sources: {gh: {quota: 100/}}",
     "sources.gh.quota: '100/' is not a quota; give messages and whole seconds or a "
     "duration, such as 100/1s, 6000/1m or 1000000/1d"),
    ("sources: {gh: {quota: 0/1s}}", "sources.gh.quota: 0 messages are not a valid quota; allowed: 1 to 1000000000"),
    ("sources: {gh: {quota: 1/500ms}}",
     "sources.gh.quota: 500ms is not a valid period of a quota; allowed: whole seconds, 1s to 1d"),
    ("sources: {gh: {quota: 1/2d}}",
     "sources.gh.quota: 2d is not a valid period of a quota; allowed: whole seconds, 1s to 1d"),
    ("sources: {gh: {quota: 1/m}}",
     "sources.gh.quota: '1/m' is not a quota; give messages and whole seconds or a "
     "duration, such as 100/1s, 6000/1m or 1000000/1d"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FILE_MISTAKES)
def test_a_mistake_in_the_file(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_receivers_file(text)
    assert str(caught.value) == f"receivers.yaml: {message}"


def test_all_mistakes_are_listed_with_the_path_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("receivers: {a: {tiemout: 1}, b: {}}")
    with pytest.raises(UserError) as caught:
        load_receivers_file(path)
    assert str(caught.value).splitlines() == [
        f"{path}: receivers.a.post_endpoint: required, but missing",
        f"{path}: receivers.a.tiemout: unknown field; did you mean 'timeout'?",
        f"{path}: receivers.b.post_endpoint: required, but missing",
    ]


def test_a_file_that_cannot_be_read_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml: cannot be read: No such file or directory"):
        load_receivers_file(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(UserError, match=r"latin\.yaml: is not UTF-8 text"):
        load_receivers_file(tmp_path / "latin.yaml")


def test_a_fifo_without_a_writer_is_empty_and_not_waited_for(tmp_path: Path) -> None:
    """The thread that waits for one cannot be ended, and with it the process."""
    os.mkfifo(tmp_path / "fifo")
    assert load_receivers_file(tmp_path / "fifo").resolve({}) == ({}, {})


@pytest.mark.parametrize("text", ["", "# nothing but comments\n", "receivers:\nsources:\n"])
def test_a_file_may_be_empty(text: str) -> None:
    assert parse_receivers_file(text).resolve({}) == ({}, {})


@example("[]:")
@given(st.text("[]{}:,-&*!|>'\"#%@`\n ab01?", max_size=40))
def test_any_text_is_a_file_or_a_mistake_of_the_user(text: str) -> None:
    try:
        parse_receivers_file(text)
    except UserError as error:
        message = str(error)
    else:
        return
    assert all(line.startswith("receivers.yaml: ") for line in message.splitlines())


@pytest.mark.parametrize(
    "value", ["*hunter2", "!hunter2", "&hunter2 *hunter2x", "'hunter2", "%hunter2", "[hunter2", "!!int hunter2"]
)
def test_a_secret_without_the_quotes_that_it_needs_is_not_repeated(value: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_receivers_file(f"receivers:\n  ci:\n    post_endpoint: https://ci.example/\n    secret: {value}\n")
    assert "hunter2" not in str(caught.value)


def test_an_alias_of_the_node_around_it_is_a_mistake_too() -> None:
    with pytest.raises(UserError, match=r"^receivers\.yaml: "):
        parse_receivers_file("receivers: &a {x: *a}")


def test_a_missing_variable_is_named_with_file_entry_and_field() -> None:
    file = parse_receivers_file(FULL)
    with pytest.raises(UserError) as caught:
        file.resolve({"NEW": "new"})
    assert str(caught.value).splitlines() == [
        f"receivers.yaml: receivers.circleci.secret[1]: the environment variable OLD {NOT_USABLE}",
        f"receivers.yaml: receivers.circleci.bearer_token: the environment variable TOKEN {NOT_USABLE}",
        f"receivers.yaml: receivers.circleci.headers.X-Team: the environment variable TEAM {NOT_USABLE}",
    ]


def test_a_variable_that_looks_like_a_cloud_credential_needs_to_be_listed() -> None:
    environ = {"AZURE_PAT": "t"}
    file = parse_receivers_file("receivers: {a: {post_endpoint: https://a.example/, bearer_token: '${AZURE_PAT}'}}")
    with pytest.raises(UserError) as caught:
        file.resolve(usable_variables(environ, ()))
    why = f"{NOT_USABLE}: a name that begins with AZURE_ has to be listed there"
    assert str(caught.value) == f"receivers.yaml: receivers.a.bearer_token: the environment variable AZURE_PAT {why}"
    file.resolve(usable_variables(environ, ("AZURE_PAT",)))


@pytest.mark.parametrize(
    ("fields", "value", "message"),
    [
        ({"secret": "${X}"}, "whsec_hunter2!", "secret: the secret begins with whsec_, but base64 does not follow"),
        ({"post_endpoint": "${X}"}, "hunter2", "post_endpoint: not a URL; write it as https://host/path"),
        ({"bearer_token": "${X}"}, "hunter2\n", "bearer_token: the value of a header is printable ASCII, without "
         "spaces around it"),
        ({"status_endpoint": "https://${X}/"}, "u:hunter2@h", "status_endpoint: a URL must not have a user name or "
         "password; use bearer_token or headers"),
    ],
)  # fmt: skip
def test_what_a_reference_stands_for_is_checked_and_not_repeated(
    fields: dict[str, object], value: str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        parse_receivers_file(_entry(**fields)).resolve({"X": value})
    assert str(caught.value) == f"receivers.yaml: receivers.ci.{message}"


def test_references_are_replaced_only_to_be_used() -> None:
    entry = parse_receivers_file(FULL).receivers["circleci"]
    assert raw_entry(entry)["secret"] == ["${NEW}", "${OLD}"]
    assert ReceiverEntry.model_validate(raw_entry(entry)) == entry


def test_a_secret_that_is_written_out_does_not_leave_the_file() -> None:
    text = _entry(secret=["hunter2", "${NEW}"], bearer_token="hunter3", headers={"x-token": "hunter4"})
    sealed = parse_receivers_file(text).sealed
    outside = json.dumps(sealed.receivers)
    assert "hunter" not in outside + repr(sealed)
    assert "${NEW}" in outside
    assert sorted(sealed.literals.values()) == ["hunter2", "hunter3", "hunter4"]
    entry = ReceiverEntry.model_validate(sealed.receivers["ci"])
    assert entry.post_endpoint == "https://ci.example/"


@pytest.mark.parametrize(
    ("fields", "secret", "resolved"),
    [
        ({"secret": "hunter2-${X}"}, "hunter2", "hunter2-value-of-x"),
        ({"headers": {"x-key": "${X}hunter2"}}, "hunter2", "value-of-xhunter2"),
        ({"bearer_token": "hunter2${X}"}, "hunter2", "Bearer hunter2value-of-x"),
        ({"post_endpoint": "https://ci.example/?token=hunter2"}, "hunter2", "https://ci.example/?token=hunter2"),
        ({"post_endpoint": "https://ci.example/?token=hunter2-${X}"}, "hunter2", "/?token=hunter2-value-of-x"),
        (
            {"status_endpoint": "https://ci.example/{message_id}?key=hunter2"},
            "hunter2",
            "https://ci.example/{message_id}?key=hunter2",
        ),
        ({"post_endpoint": "https://ci.example/9fA3xK72bQ51mZ8w"}, "9fA3xK72bQ51mZ8w", "ple/9fA3xK72bQ51mZ8w"),
    ],
)
def test_text_beside_a_reference_and_tokens_in_urls_stay_here_too(
    fields: dict[str, Any], secret: str, resolved: str
) -> None:
    file = parse_receivers_file(_entry(**fields))
    sealed = file.sealed
    assert secret not in json.dumps(sealed.receivers)
    entry = ReceiverEntry.model_validate(sealed.receivers["ci"])
    receiver = resolve("ci", entry, {"X": "value-of-x", **sealed.literals})
    assert receiver == resolve("ci", file.receivers["ci"], {"X": "value-of-x"})
    assert resolved in repr((receiver, receiver.post.signing.secrets, receiver.post.headers))
    with pytest.raises(UserError, match="variable X" if "${X}" in repr(fields) else "literal in a receivers file"):
        resolve("ci", entry, sealed.literals if "${X}" in repr(fields) else {})


def test_the_name_of_an_auth_scheme_is_no_secret() -> None:
    sealed = parse_receivers_file(_entry(headers={"authorization": "Token ${X}"})).sealed
    assert sealed.receivers["ci"]["headers"] == {"authorization": "Token ${X}"}
    assert not sealed.literals


def test_an_endpoint_knows_what_is_secret_about_it() -> None:
    fields = {
        "post_endpoint": "https://ci.example/${PLACE}?token=in-url",
        "secret": ["one", "${TWO}"],
        "headers": {"authorization": "Token three"},
    }
    [receiver] = parse_receivers_file(_entry(**fields)).resolve({"PLACE": "place", "TWO": "two"})[0].values()
    assert set(receiver.post.secrets) == {"place", "in-url", "one", "two", "Token three", "three"}
    assert "three" not in repr(receiver)


def test_entries_that_this_environment_cannot_use_are_named_with_the_reason() -> None:
    file = parse_receivers_file(FULL)
    assert file.refusals(ENVIRON) == {}
    [(what, why)] = file.refusals({**ENVIRON, "OLD": "whsec_short"}).items()
    assert what == "receivers.circleci"
    assert why.startswith("receivers.yaml: receivers.circleci.secret[1]: ")
    assert "whsec_short" not in why


@pytest.mark.parametrize(
    ("allowed", "usable"),
    [
        ((), {"CI_TOKEN", "GITHUB_SECRET", "RELAYED"}),
        (("CI_TOKEN",), {"CI_TOKEN"}),
        (("GITHUB_*", "RELAY_API_KEY"), {"GITHUB_SECRET", "RELAY_API_KEY"}),
        (("*",), {"CI_TOKEN", "GITHUB_SECRET", "RELAYED", "RELAY_API_KEY", "AWS_SECRET_ACCESS_KEY"}),
    ],
)
def test_which_variables_a_file_may_name(allowed: tuple[str, ...], usable: set[str]) -> None:
    names = ("CI_TOKEN", "GITHUB_SECRET", "RELAYED", "RELAY_API_KEY", "AWS_SECRET_ACCESS_KEY")
    assert usable_variables(dict.fromkeys(names, "x"), allowed).keys() == usable


def test_another_secret_is_another_entry() -> None:
    first, second = (parse_receivers_file(_entry(secret=secret)).sealed for secret in ("one", "two"))
    assert first.receivers != second.receivers
    assert first == parse_receivers_file(_entry(secret="one")).sealed


def test_the_schema_accepts_what_the_file_may_say_and_refuses_the_rest() -> None:
    validator = jsonschema.Draft202012Validator(receivers_schema())
    validator.check_schema(receivers_schema())
    validator.validate(yaml.safe_load(FULL.replace('  "*":\n', "")))
    validator.validate(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    for fields in ({"orderng": "source"}, {"timeout": "soon"}, {"rate_limit": 0}):
        assert not validator.is_valid(yaml.safe_load(_entry(**fields)))


@pytest.mark.parametrize(
    "url", ["https://a.example", "http://127.0.0.1:9000/hooks", "https://[::1]:8/x?y=1", "https://a.example/%7Ea"]
)
def test_urls_that_may_be_posted_to(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "", "a.example", "//a.example", "https://", "https:///x", "https://:80/", "https://a.example:x/",
        "https://a.example:70000/", "https://a.example:0/", "https://[::1/", "https://a b.example/", "file:///etc/passwd",
        "https://a.example/\r\nx: y", "https://ä.example/", "https://u@a.example/", "https://a.example/#",
        "https://a.example\\@b.example/",
    ],
)  # fmt: skip
def test_urls_that_may_not(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        check_url(url)


def test_words_that_older_yaml_takes_for_booleans_are_names() -> None:
    file = parse_receivers_file(_entry(sources=["no"], event_types=["on"]).replace("ci:", "off:").replace("'", ""))
    assert file.receivers["off"].sources == ("no",)
    assert file.receivers["off"].event_types == ("on",)
    assert parse_receivers_file(_entry(enabled=False)).receivers["ci"].enabled is False
