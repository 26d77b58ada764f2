"""Datasets of tables: shuffled, by workers, resumed elsewhere, mixed, while others write."""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import (
    ConfigError,
    EmptyDatasetError,
    ShardCorruptError,
    StateError,
)
from streaming.world import World
from tests.common.tables import (
    lance,
    make_delta,
    make_lance,
    read_delta,
    read_lance,
    table_of,
    write_delta,
)
from tests.conftest import ROOT, RunPython

pytestmark = [
    pytest.mark.usefixtures("opens_tables"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

BATCH = 4
KINDS = ("delta", "lance")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A table of each kind, made when it is first asked for."""
    makers, made = {"delta": make_delta, "lance": make_lance}, dict[str, Path]()

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = makers[kind](tmp_path_factory.mktemp(kind) / "table")
        return made[kind]

    return get


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(kind: str, tables: Callable[[str], Path]) -> Path:
    return tables(kind)


def expected_ids(kind: str, path: Path, version: int | None = None) -> list[int]:
    rows = read_delta(path, version) if kind == "delta" else read_lance(path, version)
    return sorted(row["id"] for row in rows)


def open_table(path: Path, **arguments: Any) -> StreamingDataset:
    """A shuffled dataset, whose order does not depend on who reads it."""
    order = {"batch_size": BATCH, "shuffle": True, "num_canonical_nodes": 4}
    return StreamingDataset(**{"local": str(path), **order, **arguments})


def append(kind: str, path: Path, start: int, stop: int) -> None:
    rows = table_of(start, stop)
    if kind == "delta":
        write_delta(path, rows.select(["id", "text", "share"]), mode="append")
    else:
        lance().write_dataset(rows, str(path), mode="append")


def begin(kind: str, path: Path, stop: int = 60) -> Path:
    """A new table of two versions, with rows 0 to `stop`."""
    append(kind, path, 0, stop // 2)
    append(kind, path, stop // 2, stop)
    return path


def only_ids(batch: Any) -> list[int]:
    """Collates to the ids: other columns have values that torch has no tensors for."""
    return [int(row["id"]) for row in batch]


def ids(loader: Any, limit: int | None = None) -> list[int]:
    batches: Iterator[list[int]] = iter(loader)
    try:
        return [number for batch in islice(batches, limit) for number in batch]
    finally:
        if hasattr(batches, "close"):
            batches.close()


def load(dataset: StreamingDataset, **arguments: Any) -> StreamingDataLoader:
    return StreamingDataLoader(
        dataset, batch_size=BATCH, collate_fn=only_ids, **{"num_workers": 0, **arguments}
    )


SPAWN = pytest.param("spawn", marks=pytest.mark.slow)


@pytest.mark.parametrize("way", ["here", "fork", SPAWN])
def test_workers_read_every_row_once(way: str, kind: str, table: Path) -> None:
    dataset = open_table(table, num_canonical_nodes=1)
    more: dict[str, Any] = {}
    if way != "here":
        more = {"num_workers": 2, "multiprocessing_context": way}
    assert sorted(ids(load(dataset, **more))) == expected_ids(kind, table)


def test_workers_forked_from_a_process_that_read_the_table_read_it_too(
    kind: str, table: Path
) -> None:
    dataset = open_table(table, num_canonical_nodes=1)
    before = [dataset[i]["id"] for i in range(5)]
    plain = DataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=only_ids, timeout=60)
    assert sorted(ids(plain)) == expected_ids(kind, table)
    assert [dataset[i]["id"] for i in range(5)] == before


FORKS = """
import os, sys, multiprocessing
from streaming import StreamingDataset
kind, path, way = sys.argv[1:]

def use():
    dataset = StreamingDataset(local=path, batch_size=4)
    return len(list(dataset)), dataset.versions

def work(answers):
    answers.send(use())

if __name__ == "__main__":
    expected = None
    if way == "used":
        expected = use()
    if way == "library":  # As a user might, beside us.
        if kind == "delta":
            import deltalake
            deltalake.DeltaTable(path).file_uris()
        else:
            import lance
            lance.dataset(path).to_table()
    context = multiprocessing.get_context("fork")
    for daemon in (True, False):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(theirs,), daemon=daemon)
        process.start()
        assert ours.poll(50), "no answer"
        found = ours.recv()
        assert expected in (None, found), found
        expected = found
        process.join(10)
        assert process.exitcode == 0, process.exitcode
    from streaming.storage.guard import end_helper
    end_helper()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["unused", "used", "library"])
def test_a_forked_child_opens_a_table_whatever_its_parent_did(
    way: str, kind: str, table: Path, run_python: RunPython
) -> None:
    run_python(FORKS, kind, table, way, timeout=110)


def test_a_resume_on_another_world_reads_the_rest_of_the_same_version(
    kind: str, tmp_path: Path
) -> None:
    path = begin(kind, tmp_path / "table")
    version = open_table(path).versions[0]
    whole = ids(load(open_table(path)))
    loader = load(open_table(path), num_workers=2)
    seen = ids(loader, 5)
    state = loader.state_dict()
    assert state is not None
    assert json.loads(json.dumps(state)) == state
    append(kind, path, 60, 90)  # The table moves on.
    worlds = [World(ranks_per_node=2, worker=rank) for rank in range(2)]
    rest: list[list[int]] = []
    for world in worlds:
        dataset = open_table(path, batch_size=BATCH // 2, world=world)
        assert dataset.versions != [version]
        dataset.load_state_dict(state)
        assert dataset.versions == [version]
        assert dataset.num_samples == 60
        rest.append(ids(StreamingDataLoader(dataset, batch_size=BATCH // 2, collate_fn=only_ids)))
    assert sorted(seen + rest[0] + rest[1]) == sorted(whole)


def test_a_state_goes_on_exactly_though_the_table_moved_on(kind: str, tmp_path: Path) -> None:
    path = begin(kind, tmp_path / "table")
    loader = load(open_table(path))
    whole = ids(load(open_table(path)))
    assert ids(loader, 6) == whole[: 6 * BATCH]
    state = loader.state_dict()
    assert state is not None
    append(kind, path, 60, 90)
    again = load(open_table(path), num_workers=2, persistent_workers=True)
    assert sorted(set(ids(again))) == list(range(90))
    again.load_state_dict(state)
    assert sorted(ids(again)) == sorted(whole[6 * BATCH :])
    alone = load(open_table(path))
    alone.load_state_dict(state)
    assert ids(alone) == whole[6 * BATCH :]


def test_a_state_without_versions_leaves_them(kind: str, table: Path) -> None:
    dataset = open_table(table)
    versions = dataset.versions
    names = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")
    state = {**dict.fromkeys(names, 1), "initial_physical_nodes": 1}
    dataset.load_state_dict(state)
    assert dataset.versions == versions
    with pytest.raises(StateError, match="must be numbers"):
        dataset.load_state_dict({**state, "dataset": {"versions": ["x"]}})


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.test_tables import append
for number in range(5):
    append(sys.argv[1], Path(sys.argv[2]), 1000 + number, 1001 + number)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_pinned_version_is_read_while_another_process_writes_new_ones(
    kind: str, tmp_path: Path
) -> None:
    path = begin(kind, tmp_path / "table")
    dataset = open_table(path)
    command = [sys.executable, "-c", WRITER, kind, str(path), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        for _ in range(5):
            assert writer.stdout.readline()
            assert sorted({row["id"] for row in dataset}) == list(range(60))
    assert writer.returncode == 0
    assert dataset.versions != open_table(path).versions
    assert {row["id"] for row in open_table(path)} == {*range(60), *range(1000, 1005)}


def test_ranks_that_might_not_agree_are_warned(
    kind: str, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(ranks_per_node=2)
    version = open_table(table, world=world).versions[0]
    assert f"as in version={version}." in caplog.text
    caplog.clear()
    open_table(table, world=World(ranks_per_node=2, worker=1))
    assert not caplog.text  # The first rank says it for all.
    open_table(table, world=world, version=version)
    assert not caplog.text


# Rank 0 makes a dataset, and one that nobody else makes, before the table has another version.
AGREEING = """
import sys, time
from pathlib import Path
import torch.distributed as dist
from streaming import StreamingDataLoader, StreamingDataset
from streaming.world import World
sys.path.insert(0, sys.argv[4])
from tests.test_tables import append, ids, load, open_table

kind, path, is_late = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "late"
rank = World.detect().rank
moved = path.parent / "moved"
if not is_late:
    dist.init_process_group("gloo")
while rank and not moved.exists():
    time.sleep(0.01)
dataset = open_table(path, shuffle=False)
if not rank:
    assert open_table(path).versions == dataset.versions
    append(kind, path, 60, 80)
    moved.touch()
if is_late:
    dist.init_process_group("gloo")
found = [None, None]
mine = ids(load(dataset))
dist.all_gather_object(found, (dataset.versions, mine))
assert found[0][0] == found[1][0], found
assert sorted({*found[0][1], *found[1][1]}) == list(range(60 + 20 * (len(mine) > 32)))
if not is_late:
    assert len(mine) < 32, found
    assert open_table(path, version=dataset.versions[0] + 1).num_samples == 80
    dist.barrier()
print("agreed", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("delta", "early"),
        pytest.param("lance", "early", marks=pytest.mark.slow),
        pytest.param("delta", "late", marks=pytest.mark.slow),
    ],
)
def test_ranks_of_two_nodes_read_the_same_version_and_nobody_waits(
    when: str, kind: str, tmp_path: Path
) -> None:
    path = begin(kind, tmp_path / "table")
    script = tmp_path / "rank.py"
    script.write_text(AGREEING)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run"]
    nodes: list[subprocess.Popen[str]] = []
    for node in range(2):
        (tmp_path / str(node)).mkdir()
        launch = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"]
        launch += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        nodes.append(
            subprocess.Popen(
                [*command, *launch, str(script), kind, str(path), when, str(ROOT)],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "TMPDIR": str(tmp_path / str(node)),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
    try:
        told = [process.communicate(timeout=90)[0] for process in nodes]
    finally:
        for process in nodes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert ["agreed" in each for each in told] == [True, True], "\n\n".join(told)


# --- New versions at the ends of epochs -----------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_follow_goes_on_with_what_was_added(
    workers: int, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = begin(kind, tmp_path / "table")
    dataset = open_table(path, follow=True)
    loader = load(dataset, num_workers=workers, persistent_workers=workers > 0)
    assert set(ids(loader)) == set(range(60))
    append(kind, path, 60, 72)
    with caplog.at_level(logging.INFO, "streaming"):
        assert set(ids(loader)) == set(range(72))
    assert "+12 samples, which makes 72" in caplog.text
    assert set(ids(loader)) == set(range(72))


def test_follow_keeps_the_version_within_an_epoch(kind: str, tmp_path: Path) -> None:
    path = begin(kind, tmp_path / "table")
    loader = load(open_table(path, follow=True))
    first = ids(loader, 3)
    state = loader.state_dict()
    assert state is not None
    append(kind, path, 60, 72)
    again = load(open_table(path, follow=True))
    again.load_state_dict(state)
    assert set(first + ids(again)) == set(range(60))
    assert set(ids(again)) == set(range(72))


@pytest.mark.slow
def test_follow_under_a_plain_loader_is_seen_by_all_its_workers(kind: str, tmp_path: Path) -> None:
    path = begin(kind, tmp_path / "table")
    dataset = open_table(path, follow=True)
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=2, collate_fn=only_ids, persistent_workers=True
    )
    assert set(ids(loader)) == set(range(60))
    append(kind, path, 60, 72)
    assert set(ids(loader)) == set(range(72))
    state = dataset.state_dict(0, from_beginning=True)
    assert state["dataset"]["num_samples"] == 72


def test_several_ranks_follow_only_if_they_can_agree(kind: str, tmp_path: Path) -> None:
    path = begin(kind, tmp_path / "table")
    world = World(ranks_per_node=2)
    loader = load(open_table(path, follow=True, world=world))
    ids(loader)
    with pytest.raises(ConfigError, match="needs a process group and StreamingDataLoader"):
        ids(loader)


RANKS = """
import sys
from pathlib import Path
import torch.distributed as dist
from streaming import Stream
from tests.test_tables import append, ids, load, open_table

kind, path = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
newest = Stream.newest_version

def newest_version(stream):
    # Rank 0 looks; then the table moves on; then rank 1 looks.
    if rank == 0:
        found = newest(stream)
        dist.barrier()
        return found
    dist.barrier()
    append(kind, path, 60, 72)
    return newest(stream)

Stream.newest_version = newest_version
dataset = open_table(path, follow=True)
loader = load(dataset)
for _ in range(3):
    parts = [None, None]
    dist.all_gather_object(parts, (ids(loader), dataset.versions))
    if rank == 0:
        print(sorted(parts[0][0] + parts[1][0]), parts[0][1] == parts[1][1], sep="|")
dist.destroy_process_group()
"""


def test_several_ranks_follow_to_the_version_that_the_first_one_sees(
    kind: str, tmp_path: Path
) -> None:
    path, script = begin(kind, tmp_path / "table"), tmp_path / "rank.py"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run = subprocess.run(
        [*command, "--nproc-per-node=2", str(script), kind, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    first, second, third = (line.split("|") for line in run.stdout.splitlines())
    old, new = str(list(range(60))), str(list(range(72)))
    assert (first, second) == ([old, "True"], [old, "True"])
    assert third[1] == "True"
    assert set(json.loads(third[0])) == set(json.loads(new))


# --- Mixed ----------------------------------------------------------------------------------------


def test_all_formats_are_mixed_by_weight_and_a_resume_is_exact(
    tables: Callable[[str], Path], tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": 1000 + i, "text": f"m{i}"} for i in range(50)]
    with MDSWriter(out=str(tmp_path / "mds"), columns={"id": "int", "text": "str"}) as writer:
        for row in rows:
            writer.write(row)
    (tmp_path / "jsonl").mkdir()
    lines = [json.dumps({"id": 2000 + i, "text": f"j{i}"}) + "\n" for i in range(50)]
    (tmp_path / "jsonl" / "a.jsonl").write_text("".join(lines))
    (tmp_path / "parquet").mkdir()
    parquet.write_table(
        table_of(3000, 3050).select(["id", "text"]), tmp_path / "parquet" / "a.parquet"
    )

    def make() -> StreamingDataset:
        columns = ["id", "text"]
        delta, other = str(tables("delta")), str(tables("lance"))
        streams = [
            Stream(local=str(tmp_path / "mds"), proportion=0.2),
            Stream(local=str(tmp_path / "jsonl"), proportion=0.2),
            Stream(local=str(tmp_path / "parquet"), proportion=0.1),
            Stream(local=delta, proportion=0.3, columns=columns, version=2),
            Stream(local=other, proportion=0.2, columns=columns, version="good"),
        ]
        return StreamingDataset(
            streams=streams,
            epoch_size=200,
            batch_size=BATCH,
            shuffle=True,
            num_canonical_nodes=2,
        )

    dataset = make()
    assert dataset.versions == [None, None, None, 2, 7]
    assert dataset.samples_per_stream.tolist()[:4] == [50, 50, 50, 120]
    shares = [int(stream.choose) for stream in dataset.streams]
    assert shares == [40, 40, 20, 60, 40]
    whole = ids(load(make()))
    for stop in (1, 17, 49):
        loader = load(make())
        assert ids(loader, stop) == whole[: stop * BATCH]
        state = loader.state_dict()
        assert state is not None
        again = load(make())
        again.load_state_dict(json.loads(json.dumps(state)))
        assert ids(again) == whole[stop * BATCH :]


def test_a_split_of_a_dataset_of_ours_is_no_table(tmp_path: Path) -> None:
    """An index goes before a log: what a writer of ours made stays what it is."""
    with MDSWriter(out=str(tmp_path), columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{}")
    assert list(StreamingDataset(local=str(tmp_path), batch_size=1)) == [{"id": 1}]


@pytest.mark.slow
def test_spawned_children_get_versions_not_handles(kind: str, table: Path) -> None:
    dataset = open_table(table)
    assert dataset[0]
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(_versions, (dataset,)) == dataset.versions
        pool.close()
        pool.join()


def _versions(dataset: StreamingDataset) -> list[int | None]:
    assert dataset[0]
    return dataset.versions


def test_without_cache_a_local_table_is_read_where_it_lies(kind: str, table: Path) -> None:
    dataset = open_table(table, local=None, remote=str(table), cache="none")
    assert sorted(row["id"] for row in dataset[:]) == expected_ids(kind, table)


def test_a_filter_that_nothing_passes_is_named_with_the_place(
    tables: Callable[[str], Path],
) -> None:
    path = tables("lance")
    with pytest.raises(
        EmptyDatasetError, match=r"'filter': 'id < -1'.* holds no samples"
    ) as caught:
        StreamingDataset(remote=str(path), format_options={"filter": "id < -1"})
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("how", ["empty", "cut", "flip the end", "overwrite"])
def test_damaged_fragments_in_the_cache_are_fetched_again(
    how: str, is_running: bool, shuffle: bool, tables: Callable[[str], Path], tmp_path: Path
) -> None:
    table, local = tables("lance"), tmp_path / "cache"
    dataset = open_table(table, remote=str(table), local=str(local), shuffle=shuffle)
    shutil.copytree(table / "data", local / "data", dirs_exist_ok=True)
    iterator = iter(dataset)
    found = [next(iterator)["id"]] if is_running else []
    for path in (local / "data").iterdir():
        damage(path, how)
    found += [sample["id"] for sample in iterator]
    assert sorted(set(found)) == expected_ids("lance", table)


def damage(path: Path, how: str) -> None:
    """Change the bytes of a file and, as a disk that forgets, nothing of what is known of it.

    But for "overwrite", which is what a program does.
    """
    before, data = path.stat(), path.read_bytes()
    size = {"empty": 0, "cut": len(data) // 2}.get(how, len(data))
    first = {"overwrite": 0, "flip the end": len(data) - 200}.get(how, size)
    with path.open("r+b") as file:
        file.write(data[:first] + bytes(byte ^ 0x5A for byte in data[first:]))
    os.truncate(path, size)
    if how != "overwrite":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_damaged_fragment_is_told_with_its_file(
    tables: Callable[[str], Path], tmp_path: Path
) -> None:
    table = tmp_path / "table"
    shutil.copytree(tables("lance"), table)
    for path in (table / "data").iterdir():
        damage(path, "flip the end")
    more: list[dict[str, Any]] = [{"remote": str(table), "local": str(tmp_path / "cache")}]
    for places in (*more, {"local": str(table)}):
        dataset = StreamingDataset(**places, batch_size=BATCH)
        with pytest.raises(ShardCorruptError, match=r"What was read is in .*/data/\w+\.lance"):
            list(dataset)


@pytest.mark.parametrize("is_swept", [False, True], ids=["whole", "files only"])
def test_a_cache_that_is_removed_under_a_run_is_made_anew(
    kind: str, table: Path, tmp_path: Path, is_swept: bool
) -> None:
    expected = ids(load(open_table(table)))

    def read() -> list[int]:
        places = {"remote": str(table), "local": str(tmp_path / "cache")}
        dataset = open_table(table, **places, predownload=BATCH)
        if is_swept:  # As by what cleans a directory of old files.
            for file in filter(Path.is_file, (tmp_path / "cache").rglob("*")):
                file.unlink()
        else:
            shutil.rmtree(tmp_path / "cache")
        return [int(sample["id"]) for sample in dataset]

    assert read() == expected
    places = {"remote": str(table), "local": str(tmp_path / "cache")}
    assert ids(load(open_table(table, **places))) == expected
    assert not [path for path in (tmp_path / "cache").iterdir() if len(path.name) == 16]


def test_a_local_dataset_reads_the_version_and_columns_it_is_told(kind: str, table: Path) -> None:
    read = read_delta if kind == "delta" else read_lance
    for version in (2, 3):
        dataset = LocalDataset(table, format=kind, version=version, columns=["id"])
        expected = sorted(row["id"] for row in read(table, version))
        assert sorted(sample["id"] for sample in dataset) == expected
        assert all(sample.keys() == {"id"} for sample in dataset)
