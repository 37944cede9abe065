"""Checks that kafka-python has the private parts that duewheel uses.

The client package takes any kafka-python 3; another release may lack one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import kafka

from duewheel.errors import Misconfigured


def missing_part(owner: object, touched: Mapping[str, Sequence[str]]) -> str:
    """The path of the first name that an object of kafka-python lacks; "" if it has all.

    Args:
        touched: names by the path of the object that has them, from `owner` on.
    """
    for path, names in touched.items():
        holder: object = owner
        for step in filter(None, path.split(".")):
            holder = getattr(holder, step, None)
        for name in names:
            if not hasattr(holder, name):
                return f"{path or type(owner).__name__}.{name}"
    return ""


def require_parts(owner: object, touched: Mapping[str, Sequence[str]]) -> None:
    """Refuses an object of kafka-python that lacks one; `touched` as for `missing_part`.

    Raises:
        Misconfigured: it names the part.
    """
    if missing := missing_part(owner, touched):
        raise Misconfigured(
            f"kafka-python {kafka.__version__} has no {missing}, which duewheel uses: install "
            "another release of kafka-python 3"
        )
