"""Recorded runs of the predecessor, repeated with real processes and real DataLoader workers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RECORDED = json.loads((ROOT / "tests" / "golden" / "orders" / "e2e.json").read_text())["scenarios"]
STATE = (
    "epoch",
    "sample_in_epoch",
    "num_canonical_nodes",
    "shuffle_seed",
    "initial_physical_nodes",
)

# One rank of one phase; the keys of what it prints are those of the recording.
RANK = """
import json, sys, warnings
from pathlib import Path
from streaming import Stream, StreamingDataset, StreamingDataLoader

warnings.filterwarnings("ignore", "This DataLoader will create")  # More workers than cores.

phase, root = json.loads(sys.argv[1]), Path(sys.argv[2])
streams = [Stream(local=str(root / name), **weight) for name, weight in phase["streams"]]
dataset = StreamingDataset(streams=streams, batch_size=phase["batch_size"], **phase["dataset"])
loader = StreamingDataLoader(
    dataset,
    batch_size=phase["batch_size"],
    num_workers=phase["workers"],
    drop_last=phase.get("drop_last", False),
    persistent_workers=bool(phase["workers"]) and bool(sys.argv[3:]),
)
got = {
    "len_dataset": len(dataset),
    "len_loader": len(loader),
    "size": dataset.size,
    "epoch_size": dataset.epoch_size,
    "epochs": [],
}
if phase.get("state") is not None:
    loader.load_state_dict(phase["state"])
got["state_before"] = loader.state_dict()
for epoch in range(phase["epochs"]):
    is_last = epoch + 1 == phase["epochs"]
    batches = []
    for batch in loader:
        batches.append(batch["name"])
        if is_last and len(batches) == phase.get("stop_after"):
            break
    got["epochs"].append(batches)
    if is_last:
        got["state_after"] = loader.state_dict()
    elif epoch == 0:
        got["state_after_first_epoch"] = loader.state_dict()
print(json.dumps(got))
"""


def run_phase(phase: dict[str, Any], root: Path, *options: str) -> list[dict[str, Any]]:
    """Run all ranks of a phase at once, and return what each printed."""
    ranks = []
    for rank in range(phase["ranks"]):
        world = {
            "RANK": str(rank),
            "WORLD_SIZE": str(phase["ranks"]),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(phase["ranks"]),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-c", RANK, json.dumps(phase), str(root), *options]
        ranks.append(
            subprocess.Popen(
                command, env={**os.environ, **world}, stdout=subprocess.PIPE, text=True
            )
        )
    try:
        return [json.loads(rank.communicate(timeout=100)[0]) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def as_recorded(got: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """What a rank printed, without the keys that only states of ours have."""
    shown = {key: got[key] for key in recorded}
    for key in recorded:
        if key.startswith("state"):
            shown[key] = {name: got[key][name] for name in STATE}
    return shown


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "end_of_epoch_resume"])
@pytest.mark.parametrize("options", [(), ("persistent",)], ids=["fresh", "persistent"])
def test_a_recorded_run_is_repeated_batch_by_batch(
    name: str, options: tuple[str, ...], tmp_path: Path, golden: Path
) -> None:
    if options and not any(phase["phase"]["workers"] for phase in RECORDED[name]):
        pytest.skip("has no workers that could live on")
    root = Path(shutil.copytree(golden / "datasets" / "orders", tmp_path / "orders"))
    for recorded in RECORDED[name]:
        got = run_phase(recorded["phase"], root, *options)
        for mine, theirs in zip(got, recorded["ranks"], strict=True):
            assert as_recorded(mine, theirs) == theirs


def test_a_state_of_an_epochs_end_goes_on_with_the_next_epoch(tmp_path: Path, golden: Path) -> None:
    """The predecessor gives an empty epoch first (quirk K7); all else is as recorded."""
    root = Path(shutil.copytree(golden / "datasets" / "orders", tmp_path / "orders"))
    first, second = RECORDED["end_of_epoch_resume"]
    [got] = run_phase(first["phase"], root)
    assert as_recorded(got, first["ranks"][0]) == first["ranks"][0]

    [recorded] = second["ranks"]
    assert recorded["epochs"][0] == []
    [got] = run_phase({**second["phase"], "epochs": 1}, root)
    assert got["epochs"] == recorded["epochs"][1:]
    assert {name: got["state_before"][name] for name in STATE} == recorded["state_before"]
    assert {name: got["state_after"][name] for name in STATE} == recorded["state_after"]
