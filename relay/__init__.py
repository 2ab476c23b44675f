"""A webhook relay that brings the receiver's answer back to the sender."""

__version__: str


def __getattr__(name: str) -> str:
    """`__version__`: found out when it is asked for, as the command line has to be up quickly."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("webhook-relay")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0.0.0"
