"""Results of `check`."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import Result


class FileFinding(Result):
    """A contradiction in the files of a data directory."""

    file: str
    offset: int
    code: str
    detail: str

    @property
    def text(self) -> str:
        """The finding in one line."""
        return f"{self.file} at byte {self.offset}: {self.code}: {self.detail}"


class CheckedFiles(Result):
    """The verdict on all files of a data directory."""

    ok: bool
    records: int
    findings: list[FileFinding]
    more: bool = Field(description="there may be more findings than the list has")
