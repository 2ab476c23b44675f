"""What may be written in receivers.yaml about the verification of a receiver: what a handshake of that kind takes."""

from relay.config.references import has_reference
from relay.domain.ed25519 import is_private_key
from relay.domain.receiver import Verification
from relay.domain.status import same_origin


def check_provable(
    kind: Verification, secrets: tuple[str, ...] | None, post_endpoint: str | None, status_endpoint: str | None
) -> None:
    """Raises ValueError where such a handshake could not be made, or would not prove all that is asked later. None:
    that field is not given, or wrong itself."""
    if kind == "none":
        return
    if kind == "hmac" and secrets is not None and all(map(is_private_key, secrets)):
        raise ValueError("'hmac' needs a secret that both sides have: one that is no private key (whsk_)")
    urls = (post_endpoint, status_endpoint)
    if None in urls or any(map(has_reference, filter(None, urls))):
        return
    if not same_origin(status_endpoint or "", post_endpoint or ""):
        raise ValueError(
            f"{kind!r} proves the host of post_endpoint alone: status_endpoint has to be there, too, or to be left out"
        )
