"""What tests of Parquet share."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files whose footers were read."""
    from streaming.format.parquet import footer as footers

    names: list[str] = []
    real = footers._parse

    def parse(data: bytes, size: int, where: str) -> Any:
        names.append(Path(where).name)
        return real(data, size, where)

    monkeypatch.setattr(footers, "_parse", parse)
    return names
