"""The name of a source: a part of a key and of a transactional id."""

from __future__ import annotations

import pytest

from duewheel.errors import ConfigError
from duewheel.ops.source_records import require_source_name


@pytest.mark.parametrize("name", ["a", "from-karafka_2.1", "x" * 200])
def test_names(name: str) -> None:
    require_source_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a\n", "x" * 201])
def test_a_name_that_does_not_fit_is_refused_and_quoted(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 200 of a-z") as refused:
        require_source_name(name)
    assert repr(name) in str(refused.value)
    assert "--" not in str(refused.value), "not every source is named by an option"
