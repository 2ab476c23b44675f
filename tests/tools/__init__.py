"""Tests of everything but the relay: fault harness, benchmark, chart, image and wheel. Only in `make test-full`."""
