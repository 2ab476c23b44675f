"""The state port and its implementations: indexes and hints, which may be lost."""
