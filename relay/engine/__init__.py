"""The lane engine: makes every worker step safe. Knows ports only."""
