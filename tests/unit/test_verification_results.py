"""Receivers that are not verified yet, as known to a process: the order of records on the topic does not matter."""

import json
from itertools import permutations

import pytest

from relay.control.shared_index import record_header
from relay.control.verification_results import VerificationResults
from relay.domain.control_key import encode_value
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.verification import HandshakeResult, failed, handshake_of
from relay.log.port import Record

URL = "https://ci.example/hooks"
NOW = 1_700_000_000.0
OF = handshake_of("challenge", URL)
PROOF = HandshakeResult(OF, NOW, NOW)
REFUSAL = failed(OF, "404", NOW, None)
CI = Receiver("ci", Endpoint(URL), verification="challenge", verified=False)


def tell(proofs: VerificationResults, result: HandshakeResult | None, name: str = "ci") -> bool:
    value = None if result is None else encode_value(result)
    return proofs.take(name, Record("receiver_config", 0, 0, f"verification:{name}".encode(), value, (), 0))


def declare(proofs: VerificationResults, name: str = "ci", **entry: object) -> None:
    value = {"declared_by": "file", "entry": {"post_endpoint": URL, "verification": "challenge"} | entry}
    proofs.declared(name, record_header(json.dumps(value).encode()))


@pytest.fixture
def proofs() -> VerificationResults:
    return VerificationResults()


@pytest.mark.parametrize("order", list(permutations(range(2))))
@pytest.mark.parametrize(("result", "due_at"), [(PROOF, None), (REFUSAL, NOW + 1)])
def test_the_order_in_which_it_is_told_is_of_no_matter(
    order: tuple[int, ...], result: HandshakeResult, due_at: float | None, proofs: VerificationResults
) -> None:
    told = (lambda: declare(proofs), lambda: tell(proofs, result))
    for number in order:
        told[number]()
    assert proofs.due(NOW + 0.5, 9) == []
    assert proofs.due(NOW + 2, 9) == ([] if due_at is None else ["ci"])
    assert proofs.applied_to(CI).verified is (due_at is None)


def test_who_is_declared_otherwise_is_due_at_once(proofs: VerificationResults) -> None:
    assert tell(proofs, PROOF)
    for entry, due in (({}, []), ({"post_endpoint": f"{URL}/2"}, ["ci"]), ({"verification": "none"}, [])):
        declare(proofs, **entry)
        assert proofs.due(NOW, 9) == due
    declare(proofs, verification="hmac")
    proofs.declared("ci", None)
    assert proofs.due(NOW, 9) == []


def test_of_a_url_that_refers_to_something_only_who_resolves_it_can_tell(proofs: VerificationResults) -> None:
    tell(proofs, PROOF)
    declare(proofs, post_endpoint="https://${HOST}/hooks")
    assert proofs.due(NOW, 9) == ["ci"]
    assert proofs.applied_to(CI).verified
    proofs.postpone("ci", NOW + 5)
    assert (proofs.due(NOW, 9), proofs.due(NOW + 5, 9)) == ([], ["ci"])
    proofs.settle(["ci"])
    assert proofs.due(NOW + 5, 9) == []


def test_what_is_no_url_disturbs_nobody(proofs: VerificationResults) -> None:
    for url in ("https://ci.example:99999/", "https://[ci/", ""):
        declare(proofs, post_endpoint=url)
    assert proofs.due(NOW, 9) == ["ci"]


def test_what_does_not_come_again_is_forgotten_when_the_topic_is_read_anew(proofs: VerificationResults) -> None:
    for name in ("ci", "cd"):
        declare(proofs, name)
        tell(proofs, PROOF, name)
    proofs.begin()
    tell(proofs, PROOF)
    assert proofs.newest("cd") == PROOF  # until all is read
    proofs.finish()
    assert (proofs.newest("ci"), proofs.newest("cd")) == (PROOF, None)


def test_a_proof_that_is_taken_back_is_none(proofs: VerificationResults) -> None:
    tell(proofs, PROOF)
    assert not tell(proofs, None)
    declare(proofs)
    assert proofs.due(NOW, 9) == ["ci"]
    assert not proofs.applied_to(CI).verified


def test_some_are_looked_at_at_a_time(proofs: VerificationResults) -> None:
    for number in range(5):
        declare(proofs, f"r-{number}")
    assert proofs.due(NOW, 2) == ["r-0", "r-1"]
    proofs.postpone("r-0", NOW + 1)
    proofs.settle(["r-1"])
    assert proofs.due(NOW, 9) == ["r-2", "r-3", "r-4"]
