"""Reasons of dead letters: who has to act, and how a row remembers them."""

import pytest

from relay.domain.reasons import REASON_CODES, replaced_by, replaced_detail


def test_the_code_of_a_reason_never_changes() -> None:
    """Rows in Redis outlive the process that wrote them: only a new reason gets a new code."""
    assert REASON_CODES == {
        "invalid": 1,
        "unknown_receiver": 2,
        "id_conflict": 3,
        "too_large": 4,
        "rejected": 5,
        "gone": 6,
        "exhausted": 7,
        "expired": 8,
        "ambiguous": 9,
        "backlog_full": 10,
        "answer_timeout": 11,
        "receiver_forgot": 12,
        "callback_rejected": 13,
        "callback_exhausted": 14,
        "poison": 15,
        "discarded": 16,
        "lost": 17,
        "cancelled": 18,
        "replaced": 19,
    }


def test_every_reason_has_a_code_of_one_byte() -> None:
    assert len(set(REASON_CODES.values())) == len(REASON_CODES)
    assert all(0 < code < 256 for code in REASON_CODES.values())


@pytest.mark.parametrize("newer", ["a-1", 'é ,;"#\u202e', "\\' of its key", "../%2F?", "x" * 256])
def test_a_replaced_one_names_the_newer(newer: str) -> None:
    assert replaced_by("replaced", replaced_detail(newer)) == newer
    assert replaced_by("discarded", replaced_detail(newer)) is None, "others may quote it"


@pytest.mark.parametrize("detail", [None, "", "replaced by the newer message", 'replaced by the newer message "" of'])
def test_a_detail_without_an_id_names_none(detail: str | None) -> None:
    assert replaced_by("replaced", detail) is None
