"""Outgoing HTTP: the transport and the address guard."""
