"""The base of all results.

The JSON of a command has the fields that were set when the result was made; that of the HTTP API
has all fields, as its description says. Instants are epoch milliseconds in both.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Result(BaseModel):
    """A result: frozen."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object of a command."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)
