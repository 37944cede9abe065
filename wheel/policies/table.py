"""All policies of delivery: the one class of each module beside this one, in the order in which
they are asked. Here alone they are listed, for the product and for the simulation.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from duewheel.wheel import policies
from duewheel.wheel.policies.policy import Policy, PolicySettings


def _kinds() -> Iterator[type[Policy]]:
    for module in pkgutil.iter_modules(policies.__path__):
        name = f"{policies.__name__}.{module.name}"
        for kind in vars(importlib.import_module(name)).values():
            is_own = isinstance(kind, type) and kind.__module__ == name
            if is_own and issubclass(kind, Policy) and kind is not Policy:
                yield kind


# In the order of their modules; `is_last` follows all others.
POLICIES = sorted(_kinds(), key=lambda kind: kind.is_last)


def configured(settings: PolicySettings) -> tuple[Policy, ...]:
    """Makes the policies that these settings have."""
    found = (kind.configured(settings) for kind in POLICIES)
    return tuple(policy for policy in found if policy is not None)
