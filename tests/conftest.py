"""What holds for every test."""

import gc

# The tests import some 4,000 modules that stay. Without this the cyclic collector goes through all of it, again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
