"""What a record still needs when a relay is exported, judged by its rows, and the file of the export."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Literal

import pytest
from click.testing import CliRunner

from relay.cli import transfer
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.state.rows import Row, Stage
from relay.transfer.outgoing import Left, left_of_result


@pytest.mark.parametrize(
    ("outcome", "delivery", "callback", "left"),
    [
        ("answered", Stage.PUBLISHED, Stage.NONE, Left.ALL),
        ("answered", Stage.PUBLISHED, Stage.SENDING, Left.ALL),
        ("answered", Stage.PUBLISHED, Stage.RESULT, Left.NOT_PUBLISHED),
        ("answered", Stage.DONE, Stage.NONE, Left.OVER),
        ("answered", Stage.DONE, Stage.RESULT, Left.OVER),  # its process died before it deleted the callback's row
        ("failed", Stage.FAILED, Stage.NONE, Left.ALL),
        ("failed", Stage.FAILED, Stage.DONE, Left.OVER),
    ],
)
def test_a_result_is_over_when_the_row_of_its_delivery_proves_it(
    outcome: Literal["answered", "failed"], delivery: Stage, callback: Stage, left: Left
) -> None:
    hop = Hop(delivery=DeliveryId("ci", "github", "m-1"), outcome=outcome)
    assert left_of_result(hop, Row(stage=delivery), Row(stage=callback)) is left


def _export_to(file: Path, monkeypatch: pytest.MonkeyPatch, *, refused: bool) -> None:
    async def export(_settings: Settings, _directory: Path | None, _with_secrets: bool, out: BinaryIO) -> int:
        out.write(b"a line\n")
        if refused:
            raise UserError("ci has secrets")
        return 1

    monkeypatch.setattr(transfer, "_export", export)
    done = CliRunner().invoke(transfer.export, [str(file)])
    assert isinstance(done.exception, UserError) if refused else done.exception is None, done


def test_a_refused_export_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _export_to(tmp_path / "export.jsonl", monkeypatch, refused=True)
    assert list(tmp_path.iterdir()) == []


def test_an_export_replaces_an_earlier_one_once_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "export.jsonl", tmp_path / "newest.jsonl"
    file.write_text("earlier\n")
    link.symlink_to(file)
    _export_to(link, monkeypatch, refused=True)
    assert file.read_text() == "earlier\n"
    _export_to(link, monkeypatch, refused=False)
    assert (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink()) == ("a line\n", 0o600, True)
    assert set(tmp_path.iterdir()) == {file, link}


def test_an_export_is_written_into_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as reader:
        found = reader.submit(pipe.read_bytes)
        _export_to(pipe, monkeypatch, refused=False)
        assert found.result(10) == b"a line\n"


def test_an_export_that_does_not_fit_is_not_reported_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def export(_settings: Settings, _directory: Path | None, _with_secrets: bool, out: BinaryIO) -> int:
        return out.write(b"a line\n") > 0

    monkeypatch.setattr(transfer, "_export", export)
    done = CliRunner().invoke(transfer.export, ["/dev/full"])
    assert isinstance(done.exception, OSError)
    assert "exported" not in done.output
