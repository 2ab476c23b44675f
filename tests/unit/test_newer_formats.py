"""What a newer release may have written: it is read where it only has more, and else left alone, and never skipped."""

import json
from pathlib import Path

import pytest

from relay.domain.control_key import decode_value, encode_value
from relay.domain.errors import InvalidRecord, LogUnavailable, UserError
from relay.domain.hop import FORM as HOP_FORM
from relay.domain.hop import FORM_HEADER, Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.replay_job import ReplayProgress
from relay.domain.route import LaneRoute
from relay.embedded.directory import FORM as DIRECTORY_FORM
from relay.embedded.directory import check_form
from relay.engine.parked_copy import FORM as PARKED_FORM
from relay.engine.parked_copy import unwrap_ours, wrap
from relay.engine.work import Work
from relay.log.port import Record
from relay.state.rows import delivery_row

DELIVERY = DeliveryId("ci", "github", "m-1")
HOP = Hop(DELIVERY)


def test_more_fields_of_a_route_and_of_a_jobs_progress_are_ignored() -> None:
    route, progress = LaneRoute(version=3, lane="shared"), ReplayProgress("running", sent=7, positions=(1, 2))
    for known in (route, progress):
        newer = json.loads(encode_value(known)) | {"newer": 1}
        assert decode_value(type(known), json.dumps(newer).encode()) == known


@pytest.mark.parametrize("value", [b"[]", b"7", b"{", b'"text"'])
def test_what_is_neither_is_no_route_and_no_progress(value: bytes) -> None:
    for kind in (LaneRoute, ReplayProgress):
        with pytest.raises(InvalidRecord):
            decode_value(kind, value)


def test_more_headers_of_a_hop_are_ignored_and_another_form_is_told() -> None:
    assert decode_hop((*encode_hop(HOP), ("relay-newer", b"1"), (FORM_HEADER, b"%d" % HOP_FORM))) == HOP
    with pytest.raises(InvalidRecord, match="a newer release wrote this record"):
        decode_hop((*encode_hop(HOP), (FORM_HEADER, b"%d" % (HOP_FORM + 1))))


def test_a_parked_copy_of_another_form_is_an_obligation_all_the_same() -> None:
    row = delivery_row(DELIVERY)
    work = Work(Record("to_receiver_ci", 0, 7, b"github", b"{}", encode_hop(HOP), 1), row, 0, None, row.owner)
    new = wrap("parked_messages", "s", work, row, due_ms=1, poll=False)

    def parked(form: int) -> Record:
        headers = (*new.headers, ("relay-parked-form", b"%d" % form), ("relay-parked-newer", b"1"))
        return Record(new.topic, 0, 0, new.key, new.value, headers, 1)

    found = unwrap_ours(parked(PARKED_FORM))
    assert found is not None
    assert found.record == work.record
    with pytest.raises(LogUnavailable, match="let processes of the newer release finish it"):
        unwrap_ours(parked(PARKED_FORM + 1))


def test_a_data_directory_of_another_form_is_left_alone(tmp_path: Path) -> None:
    check_form(tmp_path)
    check_form(tmp_path)
    for said in (str(DIRECTORY_FORM + 1), "rubbish"):
        (tmp_path / "form").write_text(said)
        with pytest.raises(UserError, match="a newer release wrote it"):
            check_form(tmp_path)


def test_a_form_that_could_not_be_written_is_written_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "form").touch()  # as a full disk leaves it
    check_form(tmp_path)
    assert (tmp_path / "form").read_text() == f"{DIRECTORY_FORM}\n"
