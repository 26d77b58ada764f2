"""The recorded cases, and the samples that they speak of."""

import json
from collections.abc import Callable
from typing import Any

from tests.conftest import ROOT

Case = dict[str, Any]


def cases(family: str) -> list[Case]:
    """The cases of one family."""
    path = ROOT / "tests" / "golden" / "dataflow" / f"{family}.json"
    found: list[Case] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return found


def failures(family: str, check: Callable[[Case], None]) -> dict[str, str]:
    """Check all cases of a family, and give those that fail, with why."""
    found = {}
    for case in cases(family):
        try:
            check({**case, "family": family})
        except Exception as error:  # noqa: BLE001  All failures are to be seen, not the first.
            found[case["id"]] = f"{type(error).__name__}: {error}"
    return found


def sized(sizes: list[int], modalities: list[str] | None = None) -> list[dict[str, Any]]:
    """Samples of given sizes, numbered by `i`."""
    keys = {"image": "pixel_values", "video": "pixel_values_videos"}
    return [
        {
            "i": i,
            "input_ids": range(size),
            **{key: i for kind, key in keys.items() if modalities and kind in modalities[i]},
        }
        for i, size in enumerate(sizes)
    ]


def cyclic_size(sample: dict[str, Any]) -> int:
    """The size rule of the recorded chains."""
    return 8 + (7 * int(sample["i"])) % 40


def numbers(group: list[dict[str, Any]]) -> list[int]:
    """The samples of a group by their numbers."""
    return [sample["i"] for sample in group]
