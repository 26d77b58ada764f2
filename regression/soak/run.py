"""Many jobs of several users on one cache, while everything that can go wrong does.

usage: run.py [--minutes M] [--jobs J] [--ranks R] [--workers W] [--kills K] [--seed S]

Each job has R ranks with W loader workers each, all in one cache directory with a limit of half of
the data. They read epochs without end from a slow store, and check every sample of every epoch
against a plain local reading. Meanwhile ranks and workers are killed and interrupted, cached files
are cut and overwritten, and the disk is filled up. As root, every second job is another user's, and
the cache is a small file system of its own (tmpfs); otherwise all are this user's, and no disk is
filled.

Ends with 1 if an epoch that came to its end was not exact, if a rank ended for another reason than
one that was done to it, if one stood still, or if something is left over in the end.
"""

import argparse
import gc
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset, World
from streaming.storage import Store, stores
from streaming.storage.stores.fault import Fail, Fault, FaultStore
from streaming.storage.stores.local import LocalStore
from streaming.surveying import survey

SHARDS, SAMPLES, SIZE = 40, 25, 4000  # samples in each shard, bytes of each
BATCH = 5
EPOCHS = 3  # that a dataset object reads, before it is made anew
USERS, GROUP = (61001, 61002), 61003
STILL = 90.0  # seconds without an epoch or an end after which a rank counts as stuck
FILLED = 2.0  # seconds that a full disk lasts


@dataclass(frozen=True)
class Slow(Fault):
    """A call takes its time."""

    seconds: float = 0.02

    def before(self) -> None:
        time.sleep(random.uniform(0.0, 2 * self.seconds))


def open_slow(url: str, options: object = None) -> tuple[Store, str]:
    """A local directory as a store that is slow, and fails now and then."""
    inner = LocalStore(Path(url.removeprefix("slow://")))
    seed = random.randrange(1 << 30)
    return FaultStore(inner, [Slow(), Fail(op="get_file", chance=0.02)], seed=seed), ""


@dataclass
class Rank:
    """One rank of a job, which is made anew whenever it ends."""

    job: int
    number: int
    user: int | None
    pid: int = 0
    done_to_it: list[str] = field(default_factory=list)
    seen: float = 0.0  # when it was last heard of
    lines: int = 0  # of its report that were read


class Soak:
    """The whole of it: a place, the ranks, and what is done to them."""

    def __init__(self, place: Path, arguments: argparse.Namespace) -> None:
        self.place = place
        self.arguments = arguments
        self.cache = place / "cache"
        self.random = random.Random(arguments.seed)
        is_root = os.getuid() == 0
        self.ranks = [
            Rank(job, number, USERS[job % 2] if is_root else None)
            for job in range(arguments.jobs)
            for number in range(arguments.ranks)
        ]
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.ballast_until = 0.0

    # --- Ranks --------------------------------------------------------------------------------

    def open(self, rank: Rank, remote: str | None, local: Path) -> StreamingDataset:
        return StreamingDataset(
            remote=remote,
            local=str(local),
            batch_size=BATCH,
            shuffle=True,
            shuffle_block_size=SAMPLES * 6,
            num_canonical_nodes=2,
            predownload=3 * BATCH,
            cache_limit=None if remote is None else SHARDS * SAMPLES * SIZE // 2,
            download_retry=5,
            world=World(ranks_per_node=self.arguments.ranks, worker=rank.number),
        )

    def digest(self, loader: StreamingDataLoader) -> str:
        """Of all samples of an epoch, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for batch in loader:
            for text in batch["text"]:
                digest.update(text.encode())
        return digest.hexdigest()

    def expect(self) -> None:
        """Find out what each rank must read in each epoch, from local files and in processes."""
        self.expected: dict[int, list[str]] = {}
        # Here as well, so that all modules are loaded: another user may not be able to read them.
        for num_workers in (0, 1):
            dataset = self.open(self.ranks[0], None, self.place / "remote")
            self.digest(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers))
        for rank in self.ranks[: self.arguments.ranks]:
            path = self.place / f"expected.{rank.number}"

            def read(rank: Rank = rank, path: Path = path) -> None:
                dataset = self.open(rank, None, self.place / "remote")
                loader = StreamingDataLoader(
                    dataset, batch_size=BATCH, num_workers=self.arguments.workers
                )
                path.write_text(json.dumps([self.digest(loader) for _ in range(EPOCHS)]))

            os.waitpid(fork(read, None), 0)
            self.expected[rank.number] = json.loads(path.read_text())

    def run_rank(self, rank: Rank) -> None:
        """What a rank does, in its process."""
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell may have it ignored.
        if rank.job == 1:
            os.umask(0o077)
        report = open(self.report(rank), "a", buffering=1)  # noqa: SIM115 The process ends with it.
        if not self.arguments.verbose:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Torch tells of each worker that is lost.
        options = {"num_workers": self.arguments.workers, "persistent_workers": rank.job == 2}
        try:
            while not (self.place / "stop").exists():
                dataset = self.open(rank, f"slow://{self.place / 'remote'}", self.cache)
                loader = StreamingDataLoader(dataset, batch_size=BATCH, **options)
                for epoch in range(EPOCHS):
                    found = self.digest(loader)
                    is_exact = found == self.expected[rank.number][epoch]
                    report.write("exact\n" if is_exact else f"WRONG epoch {epoch}\n")
                del loader, dataset
                gc.collect()
        except BaseException as error:  # noqa: BLE001 All of it goes into the report.
            text = f"{type(error).__name__}: {error}".replace("\n", " ")
            report.write(f"ended {text[:2000]}\n")
            sys.exit(3)

    def report(self, rank: Rank) -> Path:
        return self.place / "reports" / f"{rank.job}-{rank.number}"

    def start(self, rank: Rank) -> None:
        rank.pid = fork(lambda: self.run_rank(rank), rank.user)
        rank.seen, rank.done_to_it = time.monotonic(), []

    def look_after(self, rank: Rank) -> None:
        """Read what a rank reports; make it anew if it has ended."""
        self.read_report(rank)
        pid, status = os.waitpid(rank.pid, os.WNOHANG)
        if pid:
            self.read_report(rank)
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL:
                self.counts["ranks ended by a kill"] += 1
            if code not in (0, 3) and not rank.done_to_it:
                self.faults.append(f"{self.name(rank)} ended with {code}")
            if not (self.place / "stop").exists():
                self.start(rank)
            else:
                rank.pid = 0
        elif time.monotonic() - rank.seen > STILL:
            self.faults.append(f"{self.name(rank)} stands still")
            self.show_stacks(rank)
            self.kill_group(rank)
            rank.seen = time.monotonic()

    def read_report(self, rank: Rank) -> None:
        try:
            lines = self.report(rank).read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines[rank.lines :]:
            rank.seen = time.monotonic()
            if line == "exact":
                self.counts["epochs that came to their end, all exact"] += 1
                # A signal may come between the end of an epoch and its being read here.
                kept = ("kill", "interrupt")
                rank.done_to_it = [what for what in rank.done_to_it if what in kept]
            elif line.startswith("WRONG"):
                self.faults.append(f"{self.name(rank)}: {line}")
            elif line.startswith("ended"):
                self.judge(rank, line)
        rank.lines = len(lines)

    def judge(self, rank: Rank, line: str) -> None:
        """Whether a rank had a reason to end as it did."""
        lower = line.lower()
        if "keyboardinterrupt" in lower and "interrupt" in rank.done_to_it:
            self.counts["ended by an interrupt"] += 1
        elif "no space left" in lower:
            self.counts["ended by a full disk, and said so"] += 1
        elif "dataloader worker" in lower and rank.done_to_it:
            self.counts["ended by the loss of a worker, and said so"] += 1
        elif "interrupt" in rank.done_to_it and "worker" in lower:
            self.counts["ended by an interrupt"] += 1
        else:
            self.faults.append(f"{self.name(rank)}: {line}")

    def name(self, rank: Rank) -> str:
        return f"job {rank.job}, rank {rank.number}"

    # --- What is done to them -----------------------------------------------------------------

    def harm(self) -> None:
        """Do something bad."""
        actions: dict[str, Callable[[], bool]] = {
            "kills of a rank": self.kill_rank,
            "kills of a worker": self.kill_worker,
            "interrupts": self.interrupt,
            "cached files overwritten": lambda: self.damage(is_cut=False),
            "cached files cut": lambda: self.damage(is_cut=True),
            "disks filled": self.fill,
        }
        (name,) = self.random.choices(list(actions), [30, 35, 8, 12, 10, 3])
        if actions[name]():
            self.counts[name] += 1

    def kill_rank(self) -> bool:
        rank = self.random.choice(self.ranks)
        if not rank.pid:
            return False
        os.kill(rank.pid, signal.SIGKILL)
        rank.done_to_it.append("kill")
        return True

    def kill_worker(self) -> bool:
        rank = self.random.choice(self.ranks)
        try:
            workers = psutil.Process(rank.pid).children() if rank.pid else []
        except psutil.NoSuchProcess:
            return False
        if not workers:
            return False
        rank.done_to_it.append("kill")
        with suppress(psutil.NoSuchProcess):
            self.random.choice(workers).kill()
        return True

    def interrupt(self) -> bool:
        rank = self.random.choice(self.ranks)
        try:
            if not rank.pid or os.getpgid(rank.pid) != rank.pid:
                return False  # It has only just begun.
            rank.done_to_it.append("interrupt")
            os.killpg(rank.pid, signal.SIGINT)
        except ProcessLookupError:
            return False
        return True

    def damage(self, *, is_cut: bool) -> bool:
        """Put a damaged file in the place of a good one; those who have it open keep the good."""
        files = sorted(self.cache.glob("shard.*.mds"))
        if not files:
            return False
        path = self.random.choice(files)
        try:
            size = path.stat().st_size
            bad = path.with_name(f"bad.{path.name}")
            bad.write_bytes(b"\xff" * (size // 2 if is_cut else size))
            bad.chmod(0o664)
            os.replace(bad, path)
        except OSError:  # Evicted, or the disk is full, by our own doing.
            bad.unlink(missing_ok=True)
            return False
        return True

    def fill(self) -> bool:
        if not os.path.ismount(self.cache) or self.ballast_until:
            return False
        self.ballast_until = time.monotonic() + FILLED
        with suppress(OSError), open(self.place / "cache" / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        return True

    def unfill(self) -> None:
        if self.ballast_until and time.monotonic() > self.ballast_until:
            (self.cache / "ballast").unlink(missing_ok=True)
            self.ballast_until = 0.0

    def show_stacks(self, rank: Rank) -> None:
        for process in (psutil.Process(rank.pid), *psutil.Process(rank.pid).children()):
            subprocess.run(["py-spy", "dump", "--pid", str(process.pid)], check=False)

    def kill_group(self, rank: Rank) -> None:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)

    # --- The whole ----------------------------------------------------------------------------

    def run(self) -> int:
        shared_memory = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        stores.register("slow", open_slow)
        self.expect()
        for rank in self.ranks:
            self.start(rank)
        begun = time.monotonic()
        seconds = 60 * self.arguments.minutes
        pause = seconds / (1.5 * self.arguments.kills)  # Two thirds of what is done are kills.
        following = begun + pause
        while (now := time.monotonic()) < begun + seconds:
            if now >= following:
                self.harm()
                following += pause
            self.unfill()
            for rank in self.ranks:
                self.look_after(rank)
            time.sleep(0.05)
        self.stop()
        self.check_end(shared_memory)
        return self.show(time.monotonic() - begun)

    def stop(self) -> None:
        """Let all ranks come to the end of what they are at."""
        self.ballast_until = self.ballast_until and -1.0
        self.unfill()
        (self.place / "stop").touch()
        deadline = time.monotonic() + 2 * STILL
        while any(rank.pid for rank in self.ranks) and time.monotonic() < deadline:
            for rank in self.ranks:
                if rank.pid:
                    self.look_after(rank)
            time.sleep(0.05)
        for rank in self.ranks:
            if rank.pid:
                self.faults.append(f"{self.name(rank)} did not come to an end")
                self.kill_group(rank)

    def check_end(self, shared_memory: set[str]) -> None:
        """After all is over: an epoch of each user is exact, and nothing is left."""
        wait_for_orphans(self.place)
        (self.place / "stop").unlink()
        last = [next(rank for rank in self.ranks if rank.user == user) for user in self.users()]
        for rank in last:
            self.start(rank)
            while not self.report(rank).read_text().splitlines()[rank.lines :]:
                time.sleep(0.05)
                if time.monotonic() - rank.seen > STILL:
                    self.faults.append(f"{self.name(rank)} stands still in the end")
                    break
            (self.place / "stop").touch()
            os.waitpid(rank.pid, 0)
            self.read_report(rank)
            (self.place / "stop").unlink()
        (found,) = [one for one in survey(self.cache) if one.directory == self.cache]
        limit = SHARDS * SAMPLES * SIZE // 2
        self.counts["bytes in the cache over its limit"] = max(0, found.raw_bytes - limit)
        self.counts["damaged shards made anew"] = found.stats.repairs
        self.counts["shards evicted"] = found.stats.evictions
        self.counts["shards fetched"] = found.stats.misses
        runs = [path.name for path in (self.place / "tmp").glob("streaming-run-*")]
        memory = [
            name
            for name in set(os.listdir("/dev/shm")) - shared_memory
            if name.startswith(("streaming", "goldenspike"))
        ]
        left = [*found.parts, *found.wrong_size, *runs, *memory]
        left += [f"process {process.pid}" for process in others()]
        left += [f"a user: {user.pid}" for user in found.users]
        if left:
            self.faults.append(f"left over: {left}")

    def users(self) -> list[int | None]:
        return list(dict.fromkeys(rank.user for rank in self.ranks))

    def show(self, seconds: float) -> int:
        arguments = self.arguments
        print(
            f"{arguments.jobs} jobs of {len(self.users())} users, {arguments.ranks} ranks with "
            f"{arguments.workers} workers each, {seconds:.0f} s, seed {arguments.seed}, "
            f"disk {'of its own, ' if os.path.ismount(self.cache) else 'not '}filled"
        )
        for name, count in sorted(self.counts.items()):
            print(f"{count:8d}  {name}")
        kills = self.counts["kills of a rank"] + self.counts["kills of a worker"]
        print(f"{kills:8d}  kills in all")
        for fault, count in Counter(self.faults).items():
            print(f"FAULT {count}x {fault}")
        if not self.counts["epochs that came to their end, all exact"]:
            print("FAULT no epoch came to its end")
            return 1
        return 1 if self.faults else 0


def fork(action: Callable[[], None], user: int | None) -> int:
    """Do something in a process of its own, as a user.

    Returns:
        Its number.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if user is not None:
            os.setgroups([GROUP])
            os.setgid(user)
            os.setuid(user)
        action()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException as error:  # noqa: BLE001 A child must not go on as its parent.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        gc.collect()
        sys.stderr.flush()
        os._exit(code)


def wait_for_orphans(place: Path) -> None:
    """Wait for workers whose rank was killed; they end by themselves within seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (survey(place / "cache")[0].users or others()):
        time.sleep(0.1)


def others() -> list[psutil.Process]:
    """Processes of this run beside this one: they have its command line."""
    mine = psutil.Process().cmdline()
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline() == mine and process.pid != os.getpid():
                found.append(process)
    return found


@contextmanager
def prepared(temporary: Path | None) -> Iterator[Path]:
    """A place with a dataset, a cache directory that users share, and a temporary directory."""
    place = Path(tempfile.mkdtemp(prefix="soak-", dir=temporary))
    place.chmod(0o755)
    columns = {"text": "str"}
    size_limit = SAMPLES * (SIZE + 10) + 400
    with MDSWriter(out=str(place / "remote"), columns=columns, size_limit=size_limit) as out:
        for i in range(SHARDS * SAMPLES):
            seed = hashlib.blake2b(str(i).encode()).hexdigest()
            out.write({"text": f"{i} {seed * (SIZE // len(seed))}"[:SIZE]})
    for name, mode in (("cache", 0o2775), ("tmp", 0o1777), ("reports", 0o1777)):
        (place / name).mkdir()
        (place / name).chmod(mode)
    is_mounted = False
    try:
        if os.getuid() == 0:
            size = 4 * SHARDS * SAMPLES * SIZE
            command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=2775", "tmpfs"]
            done = subprocess.run([*command, str(place / "cache")], check=False)
            is_mounted = done.returncode == 0
            os.chown(place / "cache", USERS[0], GROUP)
        yield place
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(place / "cache")], check=False)
        shutil.rmtree(place, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=220, help="about so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temporary", type=Path, help="directory for all of it")
    parser.add_argument("--verbose", action="store_true", help="show what ranks say")
    arguments = parser.parse_args()
    with prepared(arguments.temporary) as place:
        logging.getLogger("streaming").setLevel(logging.ERROR)
        os.environ["TMPDIR"] = str(place / "tmp")
        tempfile.tempdir = None
        return Soak(place, arguments).run()


if __name__ == "__main__":
    sys.exit(main())
