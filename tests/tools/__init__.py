"""Tests of what is not the relay: fault harness, benchmark, chart, image and wheel. Only in `make test-full`."""
