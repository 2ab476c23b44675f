"""The log port and its implementations: where obligations are kept."""
