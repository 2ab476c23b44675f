"""Replay and discard: what failed, or was delivered, enters the stage that gave it up once more, or ends for good."""
