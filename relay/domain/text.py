"""Text for people that more than one part of the relay writes. Pure."""


def counted(count: int, one: str, more: bool = False) -> str:
    """`1 message`, `187 messages`, `500 or more messages`."""
    return f"{count:,}{' or more' if more else ''} {one}{'' if count == 1 and not more else 's'}"
