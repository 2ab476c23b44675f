"""Faults on real servers: real relay processes on a real broker and Redis are killed, paused and cut off, what went in
and what came out is recorded by processes outside, and a pure function judges the record.

`python -m tests.faults.harness` runs the experiments. The record is history.py, the judge checker.py.
"""
