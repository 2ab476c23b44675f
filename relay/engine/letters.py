"""Records that the log does not take for their size: what goes out in their place. Pure."""

from collections.abc import Iterator, Sequence

from relay.domain.dead_letter import is_letter
from relay.domain.smaller_letter import smaller_forms
from relay.log.port import NewRecord


def ever_smaller(records: Sequence[NewRecord]) -> Iterator[tuple[NewRecord, ...]]:
    """The records with the dead letters among them in ever smaller forms; nothing where there are none."""
    for forms in zip(*(_smaller(record) for record in records if is_letter(record.headers)), strict=False):
        smaller = iter(forms)
        yield tuple(next(smaller) if is_letter(record.headers) else record for record in records)


def _smaller(letter: NewRecord) -> Iterator[NewRecord]:
    for form in smaller_forms(letter.key, letter.value, letter.headers):
        yield NewRecord(letter.topic, *form)
