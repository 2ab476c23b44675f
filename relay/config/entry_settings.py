"""Settings in effect, made of the entries of receivers.yaml without references."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel

from relay.config.endpoint_entry import EndpointEntry, egress_of
from relay.config.entry_types import quota_of, waits_of
from relay.config.expression_entry import outcome_rules, status_steps, url_template
from relay.config.filter_entry import order_by, patience_of
from relay.config.receiver_entry import ReceiverEntry
from relay.config.source_entry import CallbackEntry, InboundEntry, SourceEntry
from relay.domain.expression import CALLBACK, REQUEST, ROUTING, Expression
from relay.domain.receiver import (
    BatchPolicy,
    BreakerPolicy,
    Coalescing,
    CodeClasses,
    Endpoint,
    FormerSecret,
    Inbound,
    OfflinePolicy,
    OutcomeClass,
    PollPolicy,
    Receiver,
    SigningPolicy,
    Source,
    StatusMap,
)
from relay.domain.request_form import RequestForm
from relay.domain.signing import is_private_key
from relay.domain.template import has_expression

_Made = TypeVar("_Made")
_NEVER_OFFLINE: Final = OfflinePolicy(after=315_360_000.0, disable_after=630_720_000.0)
"""Offline settings of endpoints with a `request` of their own: they do not expect pings, and a ping might start
something. After an outage, a message shows whether they are back."""


def receiver_settings(name: str, entry: ReceiverEntry, secrets: tuple[str, ...]) -> Receiver:
    """`secrets`: all secrets of the entry."""
    post = _endpoint(
        entry,
        entry.post_endpoint,
        secrets,
        codes={code: kind for kind in get_args(OutcomeClass) for code in getattr(entry.codes, kind)},
        request=None if entry.request is None else entry.request.compiled(REQUEST),
    )
    return _from_entry(
        Receiver,
        entry,
        name=name,
        post=post,
        status_map=None if entry.status is None else StatusMap(**entry.status.model_dump()),
        status_steps=status_steps(entry.status_steps),
        outcomes=outcome_rules(entry.outcomes),
        poll=PollPolicy(**waits_of(entry.poll)),
        ordering=order_by(entry.ordering),
        patience=patience_of(entry.ordering),
        coalesce=None if entry.coalesce is None else Coalescing(**entry.coalesce.model_dump()),
        filter=None if entry.filter is None else entry.filter.compiled(),
        encrypt=None if entry.encrypt is None else entry.encrypt.settings(),
        batch=None if entry.batch is None else BatchPolicy(**entry.batch.model_dump()),
        labels=tuple(sorted(entry.labels.items())),
        verified=entry.verification == "none",  # proofs are not part of the entry
    )


def source_settings(source_id: str, entry: SourceEntry, secrets: tuple[str, ...]) -> Source:
    """`secrets`: all secrets of the entry."""
    callback = entry.callback if isinstance(entry.callback, CallbackEntry) else None
    return _from_entry(
        Source,
        entry,
        source_id=source_id,
        callback=None if callback is None else _callback(callback, secrets),
        keep={name: Expression(text, ROUTING, f"keep.{name}") for name, text in entry.keep.items()},
        progress=frozenset(() if callback is None else callback.progress),
        kafka=entry.callback == "kafka",
        inbound=None if entry.inbound is None else _inbound(entry.inbound),
        quota=quota_of(entry.quota),
    )


def _callback(entry: CallbackEntry, secrets: tuple[str, ...]) -> Endpoint:
    form = RequestForm() if entry.request is None else entry.request.compiled(CALLBACK)
    url = entry.url
    if has_expression(url):
        made = url_template(url, CALLBACK, "url", leading=True)
        form, url = replace(form, url=made), made.origin or entry.allow_origins[0]
    request = None if form == RequestForm() else form
    return _endpoint(entry, url, secrets, codes={}, request=request)


def _endpoint(
    entry: EndpointEntry,
    url: str,
    secrets: tuple[str, ...],
    *,
    codes: CodeClasses,
    request: RequestForm | None,
) -> Endpoint:
    bearer = (("authorization", f"Bearer {entry.bearer_token}"),) if entry.bearer_token else ()
    return _from_entry(
        Endpoint,
        entry,
        url=url,
        signing=_signing(entry),
        retry=entry.retry_policy(),
        breaker=BreakerPolicy(
            **entry.breaker.model_dump(),
            offline=OfflinePolicy(**entry.offline.model_dump()) if request is None else _NEVER_OFFLINE,
        ),
        headers=(*entry.headers.items(), *bearer),
        codes=codes,
        request=request,
        secrets=secrets,
        egress=egress_of(entry),
    )


def _from_entry(made: Callable[..., _Made], entry: BaseModel, **converted: object) -> _Made:
    """The settings of an entry in effect: its own fields, but for the `converted` ones, under the names that both
    declarations have."""
    same = _same_fields(made, type(entry)) - converted.keys()
    return made(**converted, **{name: getattr(entry, name) for name in same})


@cache
def _same_fields(made: Any, entry: type[BaseModel]) -> frozenset[str]:
    return frozenset(entry.model_fields).intersection(each.name for each in fields(made))


def _signing(entry: EndpointEntry) -> SigningPolicy:
    former = tuple(FormerSecret(each.secret, each.until) for each in entry.former_secrets)
    shared = tuple(secret for secret in entry.secrets if not is_private_key(secret))
    private = tuple(filter(is_private_key, entry.secrets))
    return SigningPolicy(entry.signature_styles, shared, entry.signature_digest, private, former)


def _inbound(entry: InboundEntry) -> Inbound:
    return _from_entry(Inbound, entry, secrets=entry.secrets, tolerance_s=entry.tolerance)
