"""What the tests are collected from stays until the end: the garbage collector is not to look at it again and again.

Modules and tests are half a million objects. To look at them took a third of the collecting, and a fifth of the
tests that keep a processor busy. What tests make afterwards is mostly freed by reference counts.
"""

import gc

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()  # otherwise present garbage is kept for good, too
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # those of CPython took a tenth of the CPU, and peaks of memory are the same
    gc.enable()
