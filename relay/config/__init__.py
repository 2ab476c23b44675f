"""Settings and receivers.yaml: parsed once into frozen models."""
