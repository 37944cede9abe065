"""Checks that the schema registry gives schemas: its address, its answer, the login.

Only shown values and audits need it; delivery does not, so nothing here is an error.
"""

from __future__ import annotations

from duewheel.config.settings import Settings
from duewheel.doctor.findings import Check, Findings
from duewheel.registry.decoder import HAS_NO
from duewheel.registry.values import registry_values

# A value of a schema that no registry has: it says so once it is reached and the login is right.
_VALUE = b"\0" + (2**31 - 1).to_bytes(4)


def examine(settings: Settings) -> Findings:
    """Asks the registry for a schema; yields nothing without `registry.url`."""
    values = registry_values(settings)
    found = None if values is None else values.decoded("doctor", (), _VALUE)
    if found is None:
        return
    check = Check("registry", "schema registry")
    if str(found.not_decoded).startswith(HAS_NO):
        yield check.ok(f"{settings.registry.url} answers")
    else:
        remedy = "check registry.url and its login: until then values are shown undecoded"
        yield check.warning(str(found.not_decoded), remedy)
