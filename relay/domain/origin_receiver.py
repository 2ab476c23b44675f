"""Receivers that stand for an origin, to which messages bring their own endpoints. Pure.

An operator allows the origins. Each is a receiver in the shared lane, whose limits count for the whole origin; only a
message with an endpoint there may name it.
"""

import hashlib
import re
from dataclasses import replace
from typing import Final

from relay.domain.one_off import OneOff
from relay.domain.receiver import Endpoint, Receiver, SigningPolicy
from relay.domain.topics import SHARED
from relay.domain.urls import host_of, origin_of, same_origin

_NOT_IN_A_NAME: Final = re.compile("[^a-z0-9]+")
_HOST_CHARS: Final = 40


def receiver_name(url: str) -> str:
    """The name of the receiver for the origin of this URL. Raises ValueError for an invalid URL."""
    host = _NOT_IN_A_NAME.sub("-", host_of(url).lower()).strip("-")[:_HOST_CHARS].strip("-")
    digest = hashlib.sha256(repr(origin_of(url)).encode()).hexdigest()[:8]
    return f"adhoc-{host}-{digest}"


def receiver_of(origin: str) -> Receiver:
    """The receiver for an origin. `senders` is empty: no message may name it without an endpoint."""
    post = Endpoint(origin, SigningPolicy(()))
    return Receiver(receiver_name(origin), post, ordering="none", lane=SHARED, senders=(), is_origin=True)


def may_reach(receiver: Receiver, one_off: OneOff | None) -> bool:
    """Whether a message with this endpoint is for this receiver, by their origins."""
    return receiver.is_origin and one_off is not None and same_origin(receiver.post.url, one_off.url)


def addressed(receiver: Receiver, one_off: OneOff, secret: str | None) -> Receiver:
    """The receiver for one message, with its endpoint and decrypted secret."""
    signing = receiver.post.signing if secret is None else SigningPolicy(secrets=(secret,))
    secrets = receiver.post.secrets if secret is None else (secret,)
    return replace(receiver, post=replace(receiver.post, url=one_off.url, signing=signing, secrets=secrets))
