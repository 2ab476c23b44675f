"""A webhook relay that brings the receiver's answer back to the sender."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("webhook-relay")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0"
