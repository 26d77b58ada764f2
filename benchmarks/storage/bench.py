"""How fast objects come from far away: whole files, and epochs through DataLoader workers.

    bench.py fetch     our `fetch` beside plain obstore, objects of 8 MB to files
    bench.py epoch     a cold epoch of token shards through two workers, beside peers if given
    bench.py import    what the import of the storage layer costs

The server of `server.py` runs on loopback, behind a delay and a bandwidth of its own making. Each
measurement is a fresh process with an empty local directory; readers take turns, round by round.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
OBJECTS, OBJECT_BYTES = 50, 8_000_000
TOKENS = 2048  # of a sample, int32
SHARD_BYTES = 8_000_000
KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def serving(folder: Path, delay: float, rate: float) -> Iterator[str]:
    """Run the server and give its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("server.py"))]
    with subprocess.Popen([*command, str(port), str(delay), str(rate), str(folder)]) as process:
        try:
            while True:
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


# --- What is measured, each in a process of its own ---


def time_plain(url: str, target: Path, threads: int) -> dict[str, float]:
    """Objects to files by obstore alone."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        "objects", endpoint=url, region="us-east-1", client_options={"allow_http": True}
    )

    def get(i: int) -> None:
        (target / str(i)).write_bytes(obstore.get(store, f"{i:03}").bytes())

    return _timed(lambda: _each(get, threads), OBJECTS * OBJECT_BYTES)


def time_fetch(url: str, target: Path, threads: int) -> dict[str, float]:
    """Objects to files by our `fetch`, which also checks sizes and renames."""
    from streaming.storage import guard, open_store
    from streaming.storage.download import fetch
    from streaming.util.retrying import Retry

    if os.environ.get("BENCH_HERE"):
        guard.stay_single()
    else:
        other = guard.helper()
        assert other is not None
        other.call(int)  # Its start is no part of this; see `first batch`.
    store, _ = open_store("s3://objects", {"endpoint": url})

    def get(i: int) -> None:
        fetch(store, f"{i:03}", target / str(i), size=OBJECT_BYTES, retry=Retry())

    return _timed(lambda: _each(get, threads), OBJECTS * OBJECT_BYTES)


def time_shards(url: str, target: Path, threads: int) -> dict[str, float]:
    """The shards of the dataset to memory by obstore alone: the ceiling of an epoch."""
    import obstore
    from obstore.store import S3Store

    store = S3Store("mds", endpoint=url, region="us-east-1", client_options={"allow_http": True})
    names = json.loads(bytes(obstore.get(store, "index.json").bytes()))["shards"]
    sizes = [entry["raw_data"]["bytes"] for entry in names]

    def get(i: int) -> None:
        obstore.get(store, names[i]["raw_data"]["basename"]).bytes()

    return _timed(lambda: _each(get, threads, len(names)), sum(sizes))


def time_ours(url: str, target: Path, batch: int) -> dict[str, float]:
    """A cold epoch of our dataset."""
    from streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = url
    return _epoch(
        lambda: StreamingDataset(remote="s3://mds", local=str(target), batch_size=batch), batch
    )


def time_mosaic(url: str, target: Path, batch: int) -> dict[str, float]:
    """A cold epoch of MosaicML Streaming."""
    from streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = url
    return _epoch(
        lambda: StreamingDataset(remote="s3://mds", local=str(target), batch_size=batch), batch
    )


def time_litdata(url: str, target: Path, batch: int) -> dict[str, float]:
    """A cold epoch of LitData."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    os.environ["AWS_ENDPOINT_URL"] = url
    litdata = import_module("litdata")
    downloader: Any = import_module("litdata.streaming.downloader")
    # Its client knows no option for plain http.
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}
    options = {
        "endpoint_url": url,
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "region_name": "us-east-1",
    }

    def make() -> Any:
        return litdata.StreamingDataset(
            "s3://litdata", cache_dir=str(target), storage_options=options
        )

    return _epoch(make, batch, litdata.StreamingDataLoader)


def _epoch(make: Callable[[], Any], batch: int, loader: Any = None) -> dict[str, float]:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    start = time.perf_counter()
    dataset = make()
    built = time.perf_counter()
    count, first = 0, 0.0
    for tokens in (loader or DataLoader)(dataset, batch_size=batch, num_workers=2):
        first = first or time.perf_counter() - built
        tokens = tokens["tokens"] if isinstance(tokens, dict) else tokens
        count += tokens.numel() * tokens.element_size()
    seconds = time.perf_counter() - built
    return {
        "MB/s": count / seconds / 1e6,
        "construct": built - start,
        "first": first,
        "MB": count / 1e6,
    }


def _each(get: Callable[[int], None], threads: int, count: int = OBJECTS) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(get, range(count)))


def _timed(work: Callable[[], None], size: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"MB/s": size / wall / 1e6, "cpu s": cpu}


READERS = {
    "plain": time_plain,
    "fetch": time_fetch,
    "shards": time_shards,
    "ours": time_ours,
    "mosaic": time_mosaic,
    "litdata": time_litdata,
}


# --- What is read ---


def write_objects(folder: Path) -> None:
    """Objects without a meaning."""
    folder.mkdir(parents=True)
    for i in range(OBJECTS):
        (folder / f"{i:03}").write_bytes(os.urandom(OBJECT_BYTES))


def write_mds(folder: Path, size: int) -> None:
    """Token shards, which MosaicML Streaming reads as well."""
    import numpy as np

    from streaming import MDSWriter

    draw = np.random.default_rng(0)
    columns = {"tokens": f"ndarray:int32:{TOKENS}"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=SHARD_BYTES) as writer:
        for _ in range(size // (4 * TOKENS)):
            writer.write({"tokens": draw.integers(0, 1 << 30, TOKENS, np.int32)})


LITDATA = """
import os, sys
os.environ["DISABLE_VERSION_CHECK"] = "1"
import numpy as np
from litdata.streaming.writer import BinaryWriter
folder, count, tokens, chunk = sys.argv[1], *map(int, sys.argv[2:])
os.makedirs(folder)
writer = BinaryWriter(folder, chunk_bytes=chunk)
draw = np.random.default_rng(0)
for i in range(count):
    writer[i] = draw.integers(0, 1 << 30, tokens, np.int32)
writer.done()
writer.merge()
"""


def write_litdata(python: str, folder: Path, size: int) -> None:
    """The same in LitData's chunks."""
    count = str(size // (4 * TOKENS))
    command = [python, "-c", LITDATA, str(folder), count, str(TOKENS), str(SHARD_BYTES)]
    subprocess.run(command, check=True, timeout=600)


# --- Taking turns ---


def run(python: str, ours: bool, reader: str, url: str, number: int) -> dict[str, float]:
    """Measure in a fresh process."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= KEYS | ({"PYTHONPATH": str(ROOT)} if ours else {})
    with tempfile.TemporaryDirectory() as target:
        command = [python, __file__, "child", reader, url, target, str(number)]
        done = subprocess.run(
            command, env=env, check=True, timeout=300, stdout=subprocess.PIPE, text=True
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(title: str, rounds: list[dict[str, float]]) -> None:
    """Print medians, with the smallest and the largest."""
    cells = []
    for name in rounds[0]:
        values = sorted(found[name] for found in rounds)
        middle = statistics.median(values)
        cells.append(f"{name} {middle:.3g} ({values[0]:.3g} - {values[-1]:.3g})")
    print(f"{title:24s} {'; '.join(cells)}", flush=True)


def bench_fetch(arguments: argparse.Namespace, folder: Path) -> None:
    """Whole objects to files."""
    write_objects(folder / "objects")
    for delay, rate in ((0.05, 0.0), (0.05, 200.0)):
        with serving(folder, delay, rate) as url:
            for threads in (8, 16):
                found: dict[str, list[dict[str, float]]] = {"plain": [], "fetch": []}
                for _ in range(arguments.rounds):
                    for reader, results in found.items():
                        results.append(run(sys.executable, True, reader, url, threads))
                ratios = [
                    {"ratio": ours["MB/s"] / plain["MB/s"]}
                    for ours, plain in zip(found["fetch"], found["plain"], strict=True)
                ]
                print(f"\n{delay * 1000:g} ms, {rate or 'any'} MB/s, {threads} at a time")
                for reader, results in found.items():
                    show(reader, results)
                show("fetch / plain", ratios)


def bench_epoch(arguments: argparse.Namespace, folder: Path) -> None:
    """A cold epoch through two workers."""
    pythons = {"ours": sys.executable}
    if arguments.mosaic:
        pythons["mosaic"] = str(arguments.mosaic / "bin" / "python")
    if arguments.litdata:
        pythons["litdata"] = str(arguments.litdata / "bin" / "python")
        write_litdata(pythons["litdata"], folder / "litdata", arguments.size)
    write_mds(folder / "mds", arguments.size)
    with serving(folder, arguments.delay, arguments.rate) as url:
        found: dict[str, list[dict[str, float]]] = {"shards": [], **{name: [] for name in pythons}}
        for _ in range(arguments.rounds):
            found["shards"].append(run(sys.executable, True, "shards", url, 8))
            for name, python in pythons.items():
                found[name].append(run(python, name == "ours", name, url, arguments.batch))
    print(
        f"\n{arguments.size / 1e6:g} MB of tokens, batches of {arguments.batch}, 2 workers, "
        f"{arguments.delay * 1000:g} ms, {arguments.rate or 'any'} MB/s"
    )
    for name, results in found.items():
        show(name, results)
    for name in ("shards", *list(pythons)[1:]):
        pairs = zip(found["ours"], found[name], strict=True)
        show(f"ours / {name}", [{"ratio": a["MB/s"] / b["MB/s"]} for a, b in pairs])


def bench_import(arguments: argparse.Namespace, folder: Path) -> None:
    """Import of the storage layer, and of what opens a URL of S3."""
    code = "import time; a = time.perf_counter(); {}; print(time.perf_counter() - a)"
    for line in (
        "import streaming.storage",
        "import streaming.storage; streaming.storage.open_store('s3://b')",
        "import streaming.storage.guard as g; g.helper().call(int)",
    ):
        values = []
        for _ in range(max(arguments.rounds, 5)):
            done = subprocess.run(
                [sys.executable, "-c", code.format(line)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            values.append({"ms": float(done.stdout) * 1000})
        show(line[:60], values)


BENCHES = {"fetch": bench_fetch, "epoch": bench_epoch, "import": bench_import}


def main() -> None:
    """Take the turns, or be one of the measured children."""
    if sys.argv[1:2] == ["child"]:
        _, _, reader, url, target, number = sys.argv
        print(json.dumps(READERS[reader](url, Path(target), int(number))), flush=True)
        os._exit(0)  # Some readers leave threads that never end.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=400_000_000, help="bytes of the dataset")
    parser.add_argument("--batch", type=int, default=128, help="samples of a batch")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds")
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s of the line; 0 for any")
    parser.add_argument("--mosaic", type=Path, help="virtual environment with mosaicml-streaming")
    parser.add_argument("--litdata", type=Path, help="virtual environment with litdata")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=_memory()))
    try:
        BENCHES[arguments.bench](arguments, folder)
    finally:
        shutil.rmtree(folder)


def _memory() -> str | None:
    """Where files are served from: memory, so that the disk is no part of this."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


if __name__ == "__main__":
    main()
