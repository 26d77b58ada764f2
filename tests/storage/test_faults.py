"""What becomes of each fault of a server. The table in docs/storage.md says the same."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from streaming.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    ShardCorruptError,
    StoreError,
    StoreTimeoutError,
    TransientStoreError,
)
from streaming.hashing import get_hash
from streaming.storage import Store, open_store
from streaming.storage.download import LARGE, PART, fetch
from streaming.util.retrying import Retry
from tests.servers.faulty import (
    Corrupt,
    Cut,
    Fault,
    FaultyServer,
    Replace,
    Reset,
    Stall,
    Status,
    Trickle,
    WrongLength,
)

SHARD = bytes(range(256)) * 4_000  # about 1 MB
DIGEST = ("xxh64", get_hash("xxh64", SHARD))
TIMEOUT = 0.5  # seconds without a byte
TWICE = Retry(2, base=0.05, jitter=0)
EXPIRED = "<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"


@dataclass(frozen=True)
class Case:
    """A fault, and what must become of a fetch.

    Attributes:
        faults: What goes wrong.
        error: What is raised; None: it succeeds.
        text: What the message holds beside the URL.
        requests: How many GETs there are at most.
        seconds: How long it may take.
    """

    faults: Sequence[Fault]
    error: type[Exception] | None = None
    text: str = ""
    requests: int = 6
    seconds: float = 2.0
    options: dict[str, object] = field(default_factory=dict)


CASES = {
    "403": Case([Status(403)], AccessDeniedError, "access was denied", 1),
    "401": Case([Status(401)], AccessDeniedError, "access was denied", 1),
    "404": Case([Status(404)], ObjectNotFoundError, "there is none", 1),
    "429-once": Case([Status(429, times=1)], requests=2),
    "429-always": Case([Status(429)], TransientStoreError, "slow down.*429.*tried 2 times"),
    "500-once": Case([Status(500, times=1)], requests=2),
    "500-always": Case([Status(500)], TransientStoreError, "status 500.*tried 2 times"),
    "502-once": Case([Status(502, times=1)], requests=2),
    "502-always": Case([Status(502)], TransientStoreError, "status 502.*tried 2 times"),
    "503-once": Case([Status(503, times=1)], requests=2),
    "503-always": Case([Status(503)], TransientStoreError, "slow down.*503.*tried 2 times"),
    "501-never-mends": Case([Status(501)], StoreError, "status 501", 3),
    "shorter": Case([WrongLength(-100)], ShardCorruptError, "Got 1023900 of 1024000 bytes", 2),
    "longer": Case([WrongLength(100)], ShardCorruptError, "Got 1024100 of 1024000 bytes", 2),
    "cut-once": Case([Cut(400_000, times=1)], requests=2),
    "cut-always": Case([Cut(400_000)], TransientStoreError, "connection was closed"),
    "reset-once": Case([Reset(400_000, times=1)], requests=2),
    "reset-always": Case([Reset(400_000)], TransientStoreError, "connection was"),
    "stalled-once": Case([Stall(400_000, times=1)], requests=2),
    "stalled-always": Case([Stall(400_000)], StoreTimeoutError, "nothing came in time", seconds=4),
    "silent-once": Case([Stall(-1, times=1)], requests=2),
    "silent-always": Case([Stall(-1)], StoreTimeoutError, "nothing came in time", seconds=4),
    "slow": Case([Trickle(1e6)], requests=1, seconds=4),
    "corrupted-once": Case([Corrupt(777, times=1)], requests=2),
    "corrupted-always": Case([Corrupt(777)], ShardCorruptError, f"should have.*{DIGEST[1]}", 2),
    "redirected": Case([Status(302, {"Location": "/bkt/moved"}, key="bkt/a/x y.mds")], requests=2),
    "expired": Case([Status(403, body=EXPIRED)], AccessDeniedError, "expired", 1),
}


@pytest.fixture(params=["s3", "http"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    objects = {"bkt/a/x y.mds": SHARD, "bkt/moved": SHARD, "bkt/a/empty": b""}
    with FaultyServer(objects) as server:
        yield server


def opened(server: FaultyServer, scheme: str, url: str = "", **options: object) -> Store:
    more = {"timeout": TIMEOUT, **options}
    if scheme == "s3":
        more = {"endpoint": server.url, "access_key_id": "k", "secret_access_key": "s", **more}
        return open_store(url or "s3://bkt", more)[0]
    return open_store(url or f"{server.url}/bkt", more)[0]


def key_of(scheme: str) -> str:
    return "a/x y.mds" if scheme == "s3" else "bkt/a/x y.mds"


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_survived_or_told_in_time(
    faulty: FaultyServer, scheme: str, name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    faulty.faults = list(case.faults)
    store, target = opened(faulty, scheme), tmp_path / "x.mds"
    start = time.monotonic()
    if case.error is None:
        fetch(store, key_of(scheme), target, size=len(SHARD), digest=DIGEST, retry=TWICE)
        assert target.read_bytes() == SHARD
    else:
        with pytest.raises(case.error, match=f"(?s)x.*y.mds.*{case.text}|{case.text}.*x.*y.mds"):
            fetch(store, key_of(scheme), target, size=len(SHARD), digest=DIGEST, retry=TWICE)
    assert time.monotonic() - start < case.seconds
    assert faulty.count("GET") <= case.requests
    assert os.listdir(tmp_path) == (["x.mds"] if case.error is None else [])


def test_what_had_come_before_a_break_is_not_asked_for_again(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    faulty.faults = [
        Cut(300_000, times=1),
        Stall(600_000, times=1, skip=1),
        Reset(900_000, times=1, skip=2),
    ]
    store = opened(faulty, "s3")
    fetch(store, "a/x y.mds", tmp_path / "x", size=len(SHARD), digest=DIGEST, retry=Retry(4, 0))
    assert (tmp_path / "x").read_bytes() == SHARD
    starts = [0 if span is None else int(span[6:].split("-")[0]) for _, _, span in faulty.requests]
    assert len(starts) == 4
    assert starts == sorted(starts)
    assert starts[2] > 300_000
    assert starts[3] > 600_000


def test_case_S14_a_server_that_closes_halfway_leaves_no_partial_file(
    faulty: FaultyServer, scheme: str, tmp_path: Path
) -> None:
    faulty.faults = [Cut(len(SHARD) // 2)]
    with pytest.raises(TransientStoreError, match="tried 2 times"):
        fetch(opened(faulty, scheme), key_of(scheme), tmp_path / "x", retry=TWICE)
    assert os.listdir(tmp_path) == []


def test_case_S15_a_502_and_a_429_in_ten_requests_are_survived_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = {f"bkt/{i}": b"%d" % i * 100 for i in range(30)}
    faults = [
        Status(502, method="GET", every=10, skip=3),
        Status(429, {"Retry-After": "1"}, method="GET", every=10, skip=5),
    ]
    with FaultyServer(objects, faults) as server:
        store = opened(server, "s3")
        for i in range(30):
            fetch(store, str(i), tmp_path / str(i), size=len(objects[f"bkt/{i}"]), retry=TWICE)
            assert (tmp_path / str(i)).read_bytes() == objects[f"bkt/{i}"]
        assert server.count("GET") <= 50


def test_a_throttled_server_is_left_alone_as_long_as_it_asks(
    faulty: FaultyServer, scheme: str, tmp_path: Path
) -> None:
    faulty.faults = [Status(429, {"Retry-After": "1.5"}, times=4)]  # 3 quick ones, 1 question
    start = time.monotonic()
    fetch(opened(faulty, scheme), key_of(scheme), tmp_path / "x", size=len(SHARD), retry=TWICE)
    assert time.monotonic() - start > 1.5


def test_case_S21_a_stalled_read_goes_on_with_a_range(
    faulty: FaultyServer, scheme: str, tmp_path: Path
) -> None:
    faulty.faults = [Stall(512_000, times=1)]
    fetch(opened(faulty, scheme), key_of(scheme), tmp_path / "x", digest=DIGEST, retry=TWICE)
    assert (tmp_path / "x").read_bytes() == SHARD
    (again,) = [span for _, _, span in faulty.requests][1:]
    assert again is not None
    assert 200_000 < int(again[6:].split("-")[0]) <= 512_000


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, PermissionError), (404, FileNotFoundError), (500, TransientStoreError)],
)
def test_case_S2_a_refusal_is_told_from_what_is_not_there(
    faulty: FaultyServer, scheme: str, code: int, error: type[Exception], tmp_path: Path
) -> None:
    faulty.faults = [Status(code)]
    store = opened(faulty, scheme)
    with pytest.raises(error):
        store.stat(key_of(scheme))
    with pytest.raises(error):
        fetch(store, key_of(scheme), tmp_path / "x", retry=TWICE)


def test_case_S2_a_refused_connection_is_told_as_such(scheme: str, tmp_path: Path) -> None:
    with FaultyServer() as gone:
        pass
    with pytest.raises(StoreError, match="the connection was refused.*tried 2 times"):
        fetch(opened(gone, scheme), "x", tmp_path / "x", retry=TWICE)


def test_a_host_without_a_name_is_told(tmp_path: Path) -> None:
    store, _ = open_store(f"http://{'a' * 64}.test/bkt")  # Too long to be looked for anywhere.
    with pytest.raises(StoreError, match="the name of the host is not known"):
        fetch(store, "x", tmp_path / "x", retry=TWICE)


def test_a_host_that_does_not_speak_tls_is_told_at_once(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    store, _ = open_store(faulty.url.replace("http:", "https:"), {"timeout": 1.0})
    with pytest.raises(StoreError, match="TLS failed") as caught:
        fetch(store, "bkt/a/x y.mds", tmp_path / "x", retry=TWICE)
    assert not isinstance(caught.value, TransientStoreError)


@pytest.mark.parametrize("fault", [Stall(512_000, times=1), Cut(512_000, times=1)])
def test_an_object_replaced_between_two_ranges_is_fetched_anew(
    faulty: FaultyServer, scheme: str, fault: Fault, tmp_path: Path
) -> None:
    other = bytes(reversed(SHARD))
    faulty.faults = [fault, Replace(other, times=1)]
    fetch(opened(faulty, scheme), key_of(scheme), tmp_path / "x", retry=Retry(3, base=0))
    assert (tmp_path / "x").read_bytes() == other


def test_an_object_replaced_by_another_than_the_index_knows_is_corrupt(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    faulty.faults = [Stall(512_000, times=1), Replace(bytes(reversed(SHARD)), times=1)]
    with pytest.raises(ShardCorruptError, match=DIGEST[1]):
        store = opened(faulty, "s3")
        fetch(store, "a/x y.mds", tmp_path / "x", digest=DIGEST, retry=Retry(4, base=0))
    assert os.listdir(tmp_path) == []


def test_a_large_object_comes_in_parts_and_goes_on_where_they_broke(
    faulty: FaultyServer, scheme: str, tmp_path: Path
) -> None:
    large = SHARD * (LARGE // len(SHARD) + 2)
    faulty.objects["bkt/large"] = large
    faulty.faults = [Cut(3 * PART + 1_000_000, times=4)]
    key = "large" if scheme == "s3" else "bkt/large"
    digest = ("xxh64", get_hash("xxh64", large))
    store = opened(faulty, scheme)
    fetch(store, key, tmp_path / "x", size=len(large), digest=digest, retry=TWICE)
    assert (tmp_path / "x").read_bytes() == large
    begins = {int(span[6:].split("-")[0]) for _, _, span in faulty.requests if span}
    assert set(range(0, len(large), PART)) <= begins
    asked = sum(1 for _, _, span in faulty.requests if span)
    assert asked <= len(range(0, len(large), PART)) + 4


def test_a_large_object_replaced_meanwhile_is_never_a_mixture(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    large = SHARD * (LARGE // len(SHARD) + 2)
    other = bytes(reversed(SHARD)) * (LARGE // len(SHARD) + 2)
    faulty.objects["bkt/large"] = large
    faulty.faults = [Replace(other, key="bkt/large", times=1)]
    fetch(opened(faulty, "s3"), "large", tmp_path / "x", size=len(large), retry=TWICE)
    assert (tmp_path / "x").read_bytes() == other


def test_an_empty_object_is_an_empty_file(
    faulty: FaultyServer, scheme: str, tmp_path: Path
) -> None:
    key = "a/empty" if scheme == "s3" else "bkt/a/empty"
    store = opened(faulty, scheme)
    assert fetch(store, key, tmp_path / "x", size=0, retry=TWICE) == 0
    assert (tmp_path / "x").read_bytes() == store.read(key) == store.read(key, 0, 5) == b""


@pytest.mark.parametrize("name", ["a b", "a%20b", "a+b", "ü 日本", "q?x=1&y#z", "[x]{y}"])
def test_case_F15_a_key_is_what_is_written(scheme: str, name: str, tmp_path: Path) -> None:
    with FaultyServer({f"bkt/d/{name}/{name}.mds": SHARD, "bkt/d/other": b""}) as server:
        store = opened(server, scheme)
        key = f"d/{name}/{name}.mds"
        key = key if scheme == "s3" else f"bkt/{key}"
        fetch(store, key, tmp_path / "x", size=len(SHARD), retry=TWICE)
        assert (tmp_path / "x").read_bytes() == SHARD


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("s3://bkt/a b/", "a b"),
        ("s3://bkt/a%20b", "a%20b"),
        ("s3://bkt/a+b//", "a+b"),
        ("http://h/bkt/a%20b/", "bkt/a b"),
        ("http://h/bkt/a b", "bkt/a b"),
        ("http://h/a%2520b", "a%20b"),
        ("gs://bkt", ""),
    ],
)
def test_case_F15_a_url_means_one_place(url: str, key: str) -> None:
    assert open_store(url)[1] == key


def test_a_server_without_ranges_is_read_whole(scheme: str, tmp_path: Path) -> None:
    with FaultyServer({"bkt/a/x y.mds": SHARD}, ranges=False) as server:
        store = opened(server, scheme)
        assert store.read(key_of(scheme), 5, 300_000) == SHARD[5:300_000]
        assert store.read(key_of(scheme), len(SHARD), len(SHARD) + 9) == b""
        server.faults = [Cut(100_000, times=1)]
        fetch(store, key_of(scheme), tmp_path / "x", digest=DIGEST, retry=TWICE)


def test_a_bucket_that_may_not_be_listed_can_be_read(tmp_path: Path) -> None:
    with FaultyServer({"bkt/a/x y.mds": SHARD}, lists=False) as server:
        store = opened(server, "s3")
        fetch(store, "a/x y.mds", tmp_path / "x", retry=TWICE)
        with pytest.raises(AccessDeniedError, match="Can't list s3://bkt/a"):
            list(store.list("a/"))
        with pytest.raises(AccessDeniedError, match="Without the right to list"):
            store.read("nothing")


def test_http_is_for_reading(faulty: FaultyServer, tmp_path: Path) -> None:
    store = opened(faulty, "http")
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(StoreError, match="for reading"):
        store.put_file(tmp_path / "x", "bkt/new")
    with pytest.raises(StoreError, match="for reading"):
        store.delete("bkt/a/empty")
    assert store.stat("bkt/a/empty").size == 0
