"""Settings and the receivers file: schemas, reading and validation."""
