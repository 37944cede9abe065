"""A registry with the schema of an order, and the decoder of its values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.schema_registry import SchemaRegistry, orders_registry

from duewheel.config.keys_and_defaults import RegistrySection
from duewheel.registry.values import RegistryValues


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with orders_registry() as server:
        yield server


@pytest.fixture
def values(registry: SchemaRegistry) -> Iterator[RegistryValues]:
    decoder = RegistryValues(RegistrySection(url=registry.url))
    yield decoder
    decoder._end()  # noqa: SLF001 - a user's ends with its process
