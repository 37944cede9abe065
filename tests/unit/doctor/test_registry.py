"""What `duewheel doctor` says of the schema registry."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.harness.config_file import small_settings
from tests.harness.schema_registry import orders_registry

from duewheel.api.examination import DoctorFinding
from duewheel.config.keys_and_defaults import RegistrySection
from duewheel.config.settings import Settings
from duewheel.doctor import registry
from duewheel.registry import values
from duewheel.registry.values import registry_values


def examined(settings: Settings, **registry_of: Any) -> list[DoctorFinding]:
    section = RegistrySection.model_validate(registry_of)
    settings = settings.model_copy(update={"registry": section})
    try:
        return list(registry.examine(settings))
    finally:
        if values := registry_values(settings):
            values._end()  # noqa: SLF001 - a user's ends with its process


def test_a_registry_that_gives_schemas_or_none(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    assert examined(settings) == []
    with orders_registry() as server:
        (found,) = examined(settings, url=server.url)
        assert (found.severity, found.found) == ("ok", f"{server.url} answers")
        server.schemas[str(2**31 - 1)] = 401
        (found,) = examined(settings, url=server.url)
        assert found.severity == "warning"
        assert "the registry answered 401" in found.found
        server.schemas[str(2**31 - 1)] = b"<html>the login"
        (found,) = examined(settings, url=f"{server.url}/login")
        assert found.severity == "warning"
        assert "without a schema; /login may be the wrong path" in found.found
        missing = tmp_path / "none"
        (found,) = examined(settings, url=server.url, user="ann", password_file=missing)
        assert found.severity == "warning"
        assert f"{missing} cannot be read" in found.found


def test_a_registry_that_was_not_waited_for_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a name is looked up, which the child cannot interrupt."""
    monkeypatch.setattr(values, "ANSWER_S", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (found,) = examined(small_settings(tmp_path), url=url)
    assert found.severity == "warning"
