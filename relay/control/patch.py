"""What somebody who is not to be trusted with a file wants a receiver or source to be: merged, checked as the file is,
and made fit for the log, with every secret in it encrypted. Pure, but for the chance that encryption needs."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from relay.config.encryption import ENCRYPTED, KeyRing, open_some
from relay.config.endpoint_entry import FILE_ONLY
from relay.config.entry_types import Entry, ReceiverName
from relay.config.problems import Place, explain
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import Raw, raw_entry, with_secrets_replaced
from relay.config.references import SEALED_PREFIX, references_in, substitute, texts_in
from relay.config.source_entry import SourceEntry
from relay.control.entry_kinds import RECEIVER, E, EntryKind, OwnSourceId
from relay.domain.errors import UserError
from relay.domain.receiver import Verification
from relay.domain.secrecy import MASK


class NewReceiver(ReceiverEntry):
    """What a body has that registers a receiver."""

    name: ReceiverName


class NewSource(SourceEntry):
    """What a body has that declares a source."""

    source_id: OwnSourceId


class Fault(NamedTuple):
    """A mistake, and where: `pointer` is a JSON pointer (RFC 6901)."""

    pointer: str
    detail: str


class Faulty(UserError):
    """A draft has mistakes; nothing secret is in what is said of them."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer or '/'}: {fault.detail}" for fault in faults))
        self.faults = faults


class NoKey(UserError):
    """A draft has secrets in clear, and there is no key to encrypt them with."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a draft may refer to, and what encrypts its secrets. `variables`: all that entries may refer to here;
    `allowed`: names of those that a draft may. `verification`: what a draft has to say; `none`: anything."""

    variables: Mapping[str, str]
    allowed: Collection[str]
    ring: KeyRing
    verification: Verification = "none"


def merge_patch(target: object, patch: object) -> object:
    """`target` as RFC 7396 changes it. Neither is changed itself."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def check_name(name: object, kind: EntryKind[Any] = RECEIVER) -> str:
    """Raises Faulty unless it can be that of one."""
    try:
        return kind.id.validate_python(name, strict=True)
    except ValidationError as error:
        [detail] = error.errors(include_url=False)[:1]
        text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else "a name has to be text"
        raise Faulty([Fault(f"/{kind.id_field}", "required, but missing" if name is None else text)]) from None


def opened(name: str, raw: Raw, rules: Rules, kind: EntryKind[Any] = RECEIVER) -> Raw:
    """An entry of the log with its secrets in clear, as far as they can be read here: to be merged and checked."""
    found = open_some(raw, rules.ring, (kind.place, name))
    return dict(found) if isinstance(found, dict) else {}


def with_verification(draft: Raw, former: Raw, rules: Rules) -> Raw:
    """`draft` with the verification that it has to have: it says nothing about that, and is new, or is to be sent
    somewhere else than `former`. Raises Faulty where it says another one."""
    required = rules.verification
    stays = all(draft.get(field) == former.get(field) for field in ("post_endpoint", "status_endpoint", "verification"))
    if required == "none" or (former and stays):
        return draft
    if draft.get("verification", required) != required:
        raise Faulty([Fault("/verification", f"has to be {required!r}: whoever runs the relay asks for that")])
    return draft | {"verification": required}


def checked(draft: object, rules: Rules) -> ReceiverEntry:
    """As `checked_as`, of a receiver."""
    return checked_as(RECEIVER, draft, rules)


def checked_as(kind: EntryKind[E], draft: object, rules: Rules) -> E:
    """The entry that a draft in clear makes. Raises Faulty with all that is wrong, as far as it can be seen."""
    entry, faults = _validated(kind, draft)
    faults += _unfit(draft, rules)
    if entry is None or faults:
        raise Faulty(faults)
    if next(references_in(draft), None) is not None:
        resolved = substitute(raw_entry(entry), rules.variables, origin="", place=())
        _, faults = _validated(kind, resolved)
        if faults:  # whatever is said of it may repeat what a variable stands for
            raise Faulty([Fault(fault.pointer, "not valid with what its references stand for") for fault in faults])
    return entry


def encrypted(name: str, entry: Entry, rules: Rules, kind: EntryKind[Any] = RECEIVER) -> Raw:
    """The entry as it may be on the log. Raises NoKey."""

    def sealed(text: str, place: Place) -> str:
        if not rules.ring.can_encrypt:
            raise NoKey(
                "the relay has no key to keep secrets with: set RELAY_SECRETS_KEY (make one with: openssl rand -base64 "
                "32), or leave secrets out, with signature none"
            )
        return rules.ring.encrypted(text, (kind.place, name, *place))

    return with_secrets_replaced(raw_entry(entry), sealed)


def pointer(place: Place) -> str:
    """A JSON pointer; steps that pydantic adds for itself, as `[key]`, are left out."""
    steps = [str(step) for step in place if not (isinstance(step, str) and step[:1] in ("[", "("))]
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def _validated(kind: EntryKind[E], draft: object) -> tuple[E | None, list[Fault]]:
    try:
        return kind.model.model_validate(draft), []
    except ValidationError as error:
        return None, [Fault(pointer(place), text) for place, text in explain(error, kind.model)]


def _unfit(draft: object, rules: Rules) -> list[Fault]:
    """What a file may say, and a draft may not."""
    masked = [Fault(pointer(place), _MASKED) for place, text in texts_in(draft) if MASK in text]
    masked += [Fault(pointer(place), _FILE_ONLY) for place in FILE_ONLY if _has(draft, place)]
    return masked + [Fault(pointer(place), why) for place, why in _forbidden(draft, rules)]


def _has(draft: object, place: Place) -> bool:
    for step in place:
        draft = draft.get(step) if isinstance(draft, dict) else None
    return draft is not None


_FILE_ONLY: Final = "only the receivers file says what an endpoint is reached through, as it is what guards the way out"
_MASKED: Final = f"{MASK} stands for a secret that is not shown; leave it out to keep it, or give it anew"


def _forbidden(draft: object, rules: Rules) -> Iterator[tuple[Place, str]]:
    for place, name in references_in(draft):
        if name.startswith(ENCRYPTED):
            yield place, "it is encrypted with a key that is not there any more, or for another place; give it anew"
        elif name.startswith(SEALED_PREFIX):
            yield place, "a secret of a receivers file cannot be referred to"
        elif name not in rules.allowed:
            yield place, f"it refers to {name[:80]}, which RELAY_API_SECRETS_FROM does not allow, or is not set"
