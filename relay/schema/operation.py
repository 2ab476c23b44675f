"""Checks of the doctor, settings, versions, the audit, erasures and the re-encryption of secrets, for operators."""

from typing import Literal, TypedDict

import msgspec

from relay.domain.audit import AuditLine
from relay.domain.diagnosis import Severity
from relay.domain.http_message import PublicJwk


class SettingItem(TypedDict):
    """A setting. `value`: as text, secrets masked. `source`: an option, variable, or file and field; or `default`."""

    name: str
    value: str
    source: str


class SettingsView(TypedDict):
    """The settings of the process that answers, in the order of the documentation."""

    items: list[SettingItem]


class PublicKeys(TypedDict):
    """A JWK Set."""

    keys: list[PublicJwk]


class Version(msgspec.Struct, frozen=True):
    """The version of the process that answers."""

    name: str
    version: str


class ReadinessPart(msgspec.Struct, frozen=True):
    """A dependency or part of the process. A `warning` does not make the process unready. `detail`: the problem; null
    if there is none, or if the caller may not see it."""

    name: str
    state: Literal["ok", "failed", "warning"]
    detail: str | None


class Readiness(msgspec.Struct, frozen=True):
    """The readiness of all processes that share the port. `ready`: no part has failed."""

    ready: bool
    parts: tuple[ReadinessPart, ...]


class Front(msgspec.Struct, frozen=True):
    """The parts of the API: paths, each with its purpose."""

    name: str
    version: str
    links: dict[str, str]


class AuditPage(TypedDict):
    """Newest first. `cursor`: of the next page; null on the last one."""

    items: list[AuditLine]
    cursor: str | None


class ReencryptionPage(TypedDict):
    """`key`: the id of the key that encrypts. Of the records of this page: how many were `looked_at`, have a secret of
    another key (`outdated`), and were `rewritten`; and which cannot be read here (`unreadable`), for want of their key.
    `leaving`: how many removed receivers, of which something is left, have such secrets: they go by themselves.
    `cursor`: of the next page; null on the last one."""

    key: str
    looked_at: int
    outdated: int
    rewritten: int
    unreadable: list[str]
    leaving: int
    cursor: str | None


class CheckView(TypedDict):
    """The result of a check. `name`: of the check; `subject`: a receiver or topic, for example; `what`: the finding;
    `todo`: how to fix it. `severity`: `error` if messages are lost, late or refused now, `warning` if they may be,
    `skipped` if it could not be checked."""

    name: str
    subject: str | None
    ok: bool
    severity: Severity
    what: str
    todo: str | None


class DoctorView(TypedDict):
    """The result of all checks. `ok`: no check found an error. `at`: time of the checks (RFC 3339)."""

    ok: bool
    at: str | None
    checks: list[CheckView]


class ErasureRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The payloads of a source, of one of its messages (`source_id` and `message_id`), or of all deliveries to a
    receiver."""

    source_id: str | None = None
    message_id: str | None = None
    receiver: str | None = None


class RemainsView(TypedDict):
    """A topic that keeps erased payloads for a while, and until when at the latest, with the retention that the relay
    asks for (RFC 3339; null: until the topic is compacted). The relay does not show or send them any more."""

    topic: str
    until: str | None


class ErasureView(TypedDict):
    """Payloads of messages that were received until `made_at` (RFC 3339). `by`: the caller that requested it."""

    id: str
    made_at: str | None
    by: str
    source_id: str | None
    message_id: str | None
    receiver: str | None


class NewErasureView(ErasureView):
    """`in_history`: the messages whose payload was deleted from the history; null if it does not answer, which then
    deletes them within two hours. `cancels`: path of the job that cancels what was not sent to
    a receiver, or by a source; null for a message, or if there was no room for a job: then each ends when it is due.
    `remains`: where payloads remain on the log."""

    in_history: int | None
    cancels: str | None
    remains: list[RemainsView]


class ErasurePage(TypedDict):
    """The newest first. `cursor`: of the next page; null on the last one."""

    items: list[ErasureView]
    cursor: str | None
