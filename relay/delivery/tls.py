"""Whom we trust over TLS, the same for every transport."""

import ssl

from relay.domain.errors import UserError


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """For HTTP/1.1, TLS 1.2 or newer, with host names checked. `ca_file`: PEM file of further trusted authorities.

    Raises UserError if that cannot be read.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # also ssl.SSLError
            raise UserError(f"cannot read certificate authorities from {ca_file}: {error}") from error
    return context
