"""Real processes: killed, started by torchrun, in process groups that disagree."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming.dataset import StreamingDataset
from tests.common.shards import sample, write_dataset
from tests.conftest import is_of_others

ROOT = Path(__file__).parents[1]
SHARDS, SAMPLES = 40, 5
ALL = sorted(sample(shard, place).decode() for shard in range(SHARDS) for place in range(SAMPLES))

# Reads epochs through two workers for ever, and says so batch by batch.
READER = """
import sys
from streaming import StreamingDataLoader, StreamingDataset

dataset = StreamingDataset(
    remote=sys.argv[1], local=sys.argv[2], batch_size=4, shuffle=True, validate_hash="xxh64"
)
loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
for epoch in range(int(sys.argv[3])):
    for batch in loader:
        print(epoch, *(value.decode().replace(" ", "_") for value in batch["x"]), flush=True)
"""


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


def start(code: str, *args: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def temporary_names() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).iterdir() if "streaming" in path.name}


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.4])
@pytest.mark.parametrize("victim", ["main", "worker"])
def test_a_killed_run_leaves_nothing_that_hinders_the_next(
    victim: str, delay: float, tmp_path: Path
) -> None:
    remote = write_dataset(
        tmp_path / "remote", SHARDS, SAMPLES, compression="zstd", hashes=["xxh64"], padding=20_000
    )
    cache = tmp_path / "cache"
    shared_memory = set(os.listdir("/dev/shm"))
    first = start(READER, remote, cache, 100)
    try:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("0 ")
        time.sleep(delay)  # A moment that differs from run to run is what is wanted here.
        workers = psutil.Process(first.pid).children()
        assert len(workers) == 2
        (workers[0] if victim == "worker" else psutil.Process(first.pid)).kill()
        output, errors = first.communicate(timeout=60)
        assert first.returncode != 0
        if victim == "worker":
            assert "DataLoader worker" in errors
        psutil.wait_procs(workers, timeout=30)  # torch's workers follow their parent.
    finally:
        end(first)

    begun = time.monotonic()
    second = start(READER, remote, cache, 1)
    try:
        output, errors = second.communicate(timeout=60)
    finally:
        end(second)
    assert second.returncode == 0, errors
    read = [name for line in output.splitlines() for name in line.split()[1:]]
    assert sorted(name[:20].replace("_", " ") for name in read) == ALL
    assert time.monotonic() - begun < 30
    assert {path.suffix for path in cache.glob("*") if path.is_file()} == {".mds", ".json"}
    assert not list(cache.rglob("*.part"))
    assert not temporary_names()
    left = set(os.listdir("/dev/shm")) - shared_memory
    assert [name for name in left if not is_of_others(f"/dev/shm/{name}")] == []


# Prints the samples of one rank, with whatever the test makes of the process group around it.
RANK = """
import datetime, json, os, sys
import torch.distributed as dist
from streaming import StreamingDataLoader, StreamingDataset

def group():
    dist.init_process_group(
        "gloo",
        rank=int(os.environ.get("RANK", sys.argv[4])),
        world_size=int(os.environ.get("WORLD_SIZE", 2)),
        init_method=f"file://{sys.argv[3]}",
        timeout=datetime.timedelta(seconds=47),
    )

when = sys.argv[2]
if when == "before":
    group()
dataset = StreamingDataset(local=sys.argv[1], batch_size=4, shuffle=True)
assert dist.is_initialized() == (when == "before")
if when == "after":
    group()
loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
names = [value.decode() for batch in loader for value in batch["x"]]
seen = loader.state_dict()["sample_in_epoch"]
if when != "never":
    timeout = dist.distributed_c10d._get_default_group()._get_backend(
        __import__("torch").device("cpu")).options._timeout
    assert timeout == datetime.timedelta(seconds=47), timeout
    dist.barrier()
    dist.destroy_process_group()
print(json.dumps([names, seen]))
"""


def run_ranks(
    root: Path, when: str, tmp_path: Path, variables: list[dict[str, str]]
) -> list[tuple[int, str, str]]:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(root), when, str(tmp_path / "store"), str(rank)],
            env=environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, extra in enumerate(variables)
    ]
    try:
        outputs = [rank.communicate(timeout=60) for rank in ranks]
        return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


TORCHRUN = [
    {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    for rank in range(2)
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", SHARDS, SAMPLES)


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_case_H7_a_process_group_changes_nothing_and_case_H8_nothing_changes_it(
    when: str, root: Path, tmp_path: Path
) -> None:
    ranks = run_ranks(root, when, tmp_path, TORCHRUN)
    assert [code for code, _, _ in ranks] == [0, 0], ranks
    parts = [json.loads(output) for _, output, _ in ranks]
    assert sorted(parts[0][0] + parts[1][0]) == ALL
    assert [seen for _, seen in parts] == [200, 200]


def test_case_H17_without_variables_the_groups_ranks_are_taken(root: Path, tmp_path: Path) -> None:
    ranks = run_ranks(root, "before", tmp_path, [{}, {}])
    assert [code for code, _, _ in ranks] == [0, 0], ranks
    parts = [json.loads(output)[0] for _, output, _ in ranks]
    assert sorted(parts[0] + parts[1]) == ALL


def test_case_H17_a_group_that_comes_later_and_disagrees_is_a_loud_error(
    root: Path, tmp_path: Path
) -> None:
    for code, _, errors in run_ranks(root, "after", tmp_path, [{}, {}]):
        assert code != 0
        assert "ConfigError" in errors
        assert "of 2, but the dataset was told rank 0 of 1" in errors


def test_torchrun_with_two_ranks_and_two_workers_each(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, sys\n"
        "import torch.distributed as dist\n"
        "from streaming import StreamingDataLoader, StreamingDataset\n"
        "dist.init_process_group('gloo')\n"
        "dataset = StreamingDataset(local=sys.argv[1], batch_size=4, shuffle=True)\n"
        "loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)\n"
        "names = [value.decode() for batch in loader for value in batch['x']]\n"
        "parts = [None, None]\n"
        "dist.all_gather_object(parts, names)\n"
        "if dist.get_rank() == 0:\n"
        "    print(*sorted(parts[0] + parts[1]), sep='|')\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run = subprocess.run(
        [*command, "--nproc-per-node=2", str(script), str(root)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().split("|") == ALL


def test_case_H4_one_local_directory_opened_twice_is_two_datasets(root: Path) -> None:
    datasets: list[Any] = [
        StreamingDataset(local=str(root), batch_size=4, shuffle=True) for _ in range(2)
    ]
    first = [each["x"] for each in datasets[0]]
    assert datasets[0].next_epoch == 1
    assert datasets[1].next_epoch == 0
    assert [each["x"] for each in datasets[1]] == first
    assert sorted(value.decode() for value in first) == ALL
    assert not (root / ".streaming").exists()
