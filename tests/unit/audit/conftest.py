"""What the tests of audits need to import Great Expectations."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def main_module_with_a_file() -> Iterator[None]:
    """One without, as a parallel test run has it, is taken by pyspark for a run of its own
    doctests, and ends the process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
        yield
