from __future__ import annotations

from collections.abc import Iterator

import pytest
from sharding_oracle import Oracle


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    oracle = Oracle()
    yield oracle
    oracle.close()
