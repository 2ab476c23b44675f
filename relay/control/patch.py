"""Entries from API clients: merges patches, rotates secrets, validates drafts, and encrypts their secrets for the log;
and restricts what owners change with a limited API key. Drafts are less trusted than the receivers file. Pure, except
for the randomness of encryption."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from relay.config.encryption import ENCRYPTED, KeyRing, has_encrypted, open_some, texts_in
from relay.config.endpoint_entry import FILE_ONLY
from relay.config.entry_types import MAX_FORMER, Entry, ReceiverName
from relay.config.problems import Place, explain
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ANY_SOURCE, Raw, SourceId, raw_entry, with_secrets_replaced
from relay.config.references import SEALED_PREFIX, references_in, substitute
from relay.config.source_entry import SourceEntry
from relay.control.records import source_key
from relay.domain.errors import RelayError, UserError
from relay.domain.identity import OWN_SOURCE
from relay.domain.json_pointer import pointer_of
from relay.domain.receiver import Verification
from relay.domain.secrecy import MASK
from relay.domain.signing import PRIVATE, WHSEC, is_private_key
from relay.domain.topics import SHARED

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[E]):
    """How entries of receivers, or of sources, are declared. `word`: its name in texts. `place`: its section in a
    receivers file, which is part of the authenticated data of its secrets. `model`: validates an entry. `id_field`,
    `id`: name and type of the identifier. `key`: of its record on `receiver_config`."""

    word: str
    place: str
    model: type[E]
    id_field: str
    id: TypeAdapter[str]
    key: Callable[[str], str]


def _named(source_id: str) -> str:
    if source_id == ANY_SOURCE:
        raise ValueError(f"{ANY_SOURCE!r} applies to all sources without an entry; only the receivers file may set it")
    return source_id


OwnSourceId = Annotated[SourceId, AfterValidator(_named)]
"""Id of a source that the API may declare."""
RECEIVER: Final = EntryKind("receiver", "receivers", ReceiverEntry, "name", TypeAdapter(ReceiverName), str)
SOURCE: Final = EntryKind("source", "sources", SourceEntry, "source_id", TypeAdapter(OwnSourceId), source_key)


class NewReceiver(ReceiverEntry):
    """Body of a request that registers a receiver."""

    name: ReceiverName


class NewSource(SourceEntry):
    """Body of a request that declares a source."""

    source_id: OwnSourceId


class Fault(NamedTuple):
    """A mistake, and where: `pointer` is a JSON pointer (RFC 6901)."""

    pointer: str
    detail: str


class Faulty(UserError):
    """A draft has mistakes. The texts contain no secrets."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer or '/'}: {fault.detail}" for fault in faults))
        self.faults = faults


class NoKey(UserError):
    """A draft has secrets, and there is no key to encrypt them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for drafts. `variables`: those to which entries may refer; `allowed`: names of those to which drafts may
    refer. `ring`: encrypts secrets. `verification`: the kind that drafts must have; `none` if any is allowed."""

    variables: Mapping[str, str]
    allowed: Collection[str]
    ring: KeyRing
    verification: Verification = "none"


def merge_patch(target: object, patch: object) -> object:
    """`target` with a JSON merge patch (RFC 7396) applied. The arguments are not changed."""
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
    """`name`, if it is valid for this kind of entry. Raises Faulty."""
    try:
        return kind.id.validate_python(name, strict=True)
    except ValidationError as error:
        [detail] = error.errors(include_url=False)[:1]
        text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else "a name has to be text"
        raise Faulty([Fault(f"/{kind.id_field}", "required, but missing" if name is None else text)]) from None


def opened(name: str, raw: Raw, rules: Rules, kind: EntryKind[Any] = RECEIVER) -> Raw:
    """An entry of the log with its secrets decrypted if possible, ready to be merged and validated."""
    found = open_some(raw, rules.ring, (kind.place, name))
    return dict(found) if isinstance(found, dict) else {}


def with_verification(draft: Raw, former: Raw, rules: Rules) -> Raw:
    """`draft` with the required verification, if it is new or has other URLs than `former`. Raises Faulty if it
    declares another kind."""
    required = rules.verification
    proved = ("post_endpoint", "status_endpoint", "allow_origins", "verification")
    stays = all(draft.get(field) == former.get(field) for field in proved)
    if required == "none" or (former and stays):
        return draft
    if draft.get("verification", required) != required:
        raise Faulty([Fault("/verification", f"has to be {required!r}: the relay's operator requires it")])
    return draft | {"verification": required}


def checked(kind: EntryKind[E], draft: object, rules: Rules) -> E:
    """The entry of a draft with decrypted secrets. Raises Faulty with all mistakes found."""
    entry, faults = _validated(kind, draft)
    faults += _unfit(draft, rules)
    if entry is None or faults:
        raise Faulty(faults)
    if next(references_in(draft), None) is not None:
        resolved = substitute(raw_entry(entry), rules.variables, origin="", place=())
        _, faults = _validated(kind, resolved)
        if faults:  # not reported as they are: a text may contain the value of a variable
            raise Faulty([Fault(fault.pointer, "not valid with the values of its references") for fault in faults])
    return entry


def encrypted(name: str, entry: Entry, rules: Rules, kind: EntryKind[Any] = RECEIVER) -> Raw:
    """The entry with its secrets encrypted, for the log. Raises NoKey."""

    def sealed(text: str, place: Place) -> str:
        if not rules.ring.can_encrypt:
            raise NoKey(
                "the relay has no key to encrypt secrets: set RELAY_SECRETS_KEY (make one with: openssl rand -base64 "
                "32), or leave secrets out, with signature none"
            )
        return rules.ring.encrypted(text, (kind.place, name, *place))

    return with_secrets_replaced(raw_entry(entry), sealed)


def pointer(place: Place) -> str:
    """A JSON pointer, without steps that pydantic adds, such as `[key]`."""
    return pointer_of(step for step in place if not (isinstance(step, str) and step[:1] in ("[", "(")))


def _validated(kind: EntryKind[E], draft: object) -> tuple[E | None, list[Fault]]:
    try:
        return kind.model.model_validate(draft), []
    except ValidationError as error:
        return None, [Fault(pointer(place), text) for place, text in explain(error, kind.model)]


def _unfit(draft: object, rules: Rules) -> list[Fault]:
    """Mistakes that only apply to drafts, not to files."""
    masked = [Fault(pointer(place), _MASKED) for place, text in texts_in(draft) if MASK in text]
    masked += [Fault(pointer(place), _FILE_ONLY) for place in FILE_ONLY if _has(draft, place)]
    return masked + [Fault(pointer(place), why) for place, why in _forbidden(draft, rules)]


def _has(draft: object, place: Place) -> bool:
    for step in place:
        draft = draft.get(step) if isinstance(draft, dict) else None
    return draft is not None


_FILE_ONLY: Final = (
    "only the receivers file may set an endpoint's proxy, because the proxy controls outgoing connections"
)
_MASKED: Final = f"{MASK} stands for a secret that is not shown; leave it out to keep it, or set it again"


def _forbidden(draft: object, rules: Rules) -> Iterator[tuple[Place, str]]:
    for place, name in references_in(draft):
        if name.startswith(ENCRYPTED):
            yield place, "it is encrypted with a key that no longer exists, or for another place; set it again"
        elif name.startswith(SEALED_PREFIX):
            yield place, "a secret of a receivers file cannot be referred to"
        elif name not in rules.allowed:
            yield place, f"it refers to {name[:80]}, which is not set, or RELAY_API_SECRETS_FROM does not allow it"


_FORMER: Final = "former_secrets"


def rotated(entry: Raw, new: str, *, grace_s: float, now: float) -> Raw:
    """`entry`, decrypted, with the secret `new`. It replaces the secrets of its kind, HMAC or Ed25519 (all, if there
    are none of its kind), which also sign for `grace_s`. If the entry already has it, as in a repeated request, nothing
    changes. Raises Faulty."""
    present = present_secrets(entry)
    alike = [secret for secret in present if is_private_key(secret) == is_private_key(new)] or present
    replaced = [secret for secret in alike if secret != new]
    former = [known for known in _former(entry) if _is_usable(known) and known["secret"] != new]
    if grace_s > 0:
        until = ceil(now + grace_s)
        former = [*({"secret": each, "until": until} for each in replaced if not has_encrypted(each)), *former]
    if len(former) > MAX_FORMER:
        raise Faulty([Fault("/grace", _too_many(former))])
    kept = [secret for secret in present if secret not in alike]
    return {**_without(entry, _FORMER), "secret": [new, *kept] if kept else new} | ({_FORMER: former} if former else {})


def without_expired(entry: Raw, now: float) -> Raw:
    """`entry` without former secrets that have expired."""
    living = [former for former in _former(entry) if now < former["until"]]
    return {**entry, _FORMER: living} if living else _without(entry, _FORMER)


def present_secrets(entry: Raw) -> list[str]:
    """The current secrets, newest first."""
    secret: Any = entry.get("secret", [])
    return [secret] if isinstance(secret, str) else list(secret)


def former_until(before: Raw, after: Raw) -> float | None:
    """Until when the secrets replaced by a rotation sign, or all former ones if it replaced none; None if none
    signs."""
    replaced = set(present_secrets(before)) - set(present_secrets(after))
    known = [former for former in _former(after) if not replaced or former["secret"] in replaced]
    return max((former["until"] for former in known), default=None)


def as_private_key(secret: str) -> str:
    """The Ed25519 key with the random bytes of a generated HMAC secret; both have 32 bytes."""
    return PRIVATE + secret.removeprefix(WHSEC)


def _former(entry: Raw) -> list[Mapping[str, Any]]:
    known: Any = entry.get(_FORMER, [])
    return list(known)


def _without(entry: Raw, field: str) -> Raw:
    return {name: value for name, value in entry.items() if name != field}


def _is_usable(former: Mapping[str, Any]) -> bool:
    """Whether a former secret can sign. One that cannot be decrypted must not prevent a rotation."""
    return not has_encrypted(former["secret"])


def _too_many(former: list[Any]) -> str:
    return (
        f"{len(former)} former secrets would still sign; at most {MAX_FORMER} may. Wait until one expires, or use "
        "grace 0, which ends the current secret at once"
    )


class NotTheirs(RelayError):
    """The receiver belongs, or would belong, to another owner or to none."""


@dataclass(frozen=True, slots=True)
class OwnerScope:
    """The owners whose receivers may be changed, each with at most `most` receivers. `reads`: whether the key may
    read a source, or all sources of a pattern.

    Their receivers are in the shared lane, because a lane of its own needs new topics. They subscribe only to sources
    that the key may read; otherwise they would get other owners' messages. They refer to no variables; otherwise they
    would get other owners' secrets. They do not occupy the shared lane for long; otherwise an endpoint that never
    responds would keep it from other owners.
    """

    owners: frozenset[str]
    most: int
    reads: Callable[[str], bool]

    def of_new(self, draft: Mapping[str, object]) -> Raw:
        """The draft of a new receiver with its owner. Raises NotTheirs, and Faulty if the draft has to name the
        owner."""
        said = draft.get("owner")
        if said is None and len(self.owners) == 1:
            [said] = self.owners
        if said is None:
            raise Faulty([Fault("/owner", "required, because the key has several owners")])
        self.check_own({"owner": said})
        return {**draft, "owner": said}

    def check_own(self, entry: Mapping[str, object]) -> None:
        """Raises NotTheirs unless the entry belongs to one of the owners."""
        owner = entry.get("owner")
        if not isinstance(owner, str) or owner not in self.owners:
            raise NotTheirs

    def check(self, before: Raw, entry: ReceiverEntry) -> None:
        """Raises NotTheirs or Faulty unless `before` (empty for a new receiver) may be changed to `entry`."""
        if before and before.get("owner") != entry.owner:
            raise NotTheirs
        own = (*_of_lane(before, entry), *_of_share(before, entry), *_of_proof(before, entry))
        if faults := [*own, *self._of_subscription(before, entry)]:
            raise Faulty(faults)

    def _of_subscription(self, before: Raw, entry: ReceiverEntry) -> list[Fault]:
        had, had_types, had_filter = _texts(before, "sources"), _texts(before, "event_types"), before.get("filter")
        as_filtered = had_filter is None or raw_entry(entry).get("filter") == had_filter
        if set(entry.sources) <= set(had) and set(entry.event_types) <= set(had_types) and as_filtered:
            return []
        return [
            Fault(f"/sources/{place}", f"the key may not read {pattern[:80]!r}: it lacks the scope read:{pattern[:80]}")
            for place, pattern in enumerate(entry.sources)
            if pattern != OWN_SOURCE and not self.reads(pattern)
        ]


def _of_lane(before: Raw, entry: ReceiverEntry) -> list[Fault]:
    if entry.lane != (before.get("lane", "dedicated") if before else SHARED):
        return [Fault("/lane", "an owner's key cannot change the lane; new receivers are in the shared lane")]
    if entry.partitions != before.get("partitions", 1):
        return [Fault("/partitions", "an owner's key cannot change the lane")]
    return []


_MOST_IN_SHARED: Final = {"timeout": 60.0, "max_in_flight": 500}
"""Most that an owner's key can set in the shared lane, whose window a receiver must not fill with its requests."""


def _of_share(before: Raw, entry: ReceiverEntry) -> list[Fault]:
    had = {field: value for field, value in before.items() if isinstance(value, int | float)}
    return [
        Fault(f"/{field}", f"an owner's key can set at most {most:g} in the shared lane")
        for field, most in _MOST_IN_SHARED.items()
        if entry.lane == SHARED and getattr(entry, field) > max(most, had.get(field, 0))
    ]


def _of_proof(before: Raw, entry: ReceiverEntry) -> list[Fault]:
    asked = before.get("verification", "none")
    if asked in ("none", entry.verification):
        return []
    return [Fault("/verification", f"has to stay {asked!r}; an owner's key cannot change it")]


def _texts(entry: Raw, name: str) -> Collection[str]:
    found = entry.get(name)
    return [found] if isinstance(found, str) else [str(each) for each in found] if isinstance(found, list) else []
