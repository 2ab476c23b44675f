"""Fault experiments on real servers: relay processes on a real broker and Redis are killed, paused and cut off.
Separate processes record inputs and outputs, and a pure function checks the record.

`python -m tests.faults.harness` runs the experiments. history.py has the record, checker.py the check.
"""
