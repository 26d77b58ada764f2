"""Data without an index: found, indexed once, kept, indexed again on change."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import CacheError, ConfigError, DataError
from streaming.format import Index
from streaming.format.listing import Place
from streaming.format.text import indexing, scan
from streaming.shared.plain import PlainData, PlainIndex, obtain_plain_index
from tests.common.text import write

Looks = list[str]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Names of the files that are looked through, in order."""
    seen: Looks = []
    original = indexing._scan

    def record(request: Any, file: Any, *rest: Any) -> Any:
        seen.append(file.key)
        return original(request, file, *rest)

    monkeypatch.setattr(indexing, "_scan", record)
    return seen


def obtain(place: Path | str, local: Path | None = None, **options: Any) -> PlainIndex:
    found = obtain_plain_index(PlainData(place=Place.parse(place), local=local, **options))
    assert found is not None
    return found


def counts(index: Index) -> list[int]:
    return [info.samples for info in index]


def touch_back(path: Path, data: bytes) -> None:
    """Write other bytes of the same number; the time of the file tells."""
    before = path.stat()
    assert len(data) == before.st_size
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        write(tmp_path / "data" / f"{number}.jsonl", b'{"a": 1}\n' * (number + 1))
    return tmp_path / "data"


@pytest.mark.parametrize("is_copied", [False, True])
def test_files_are_looked_through_once(
    is_copied: bool, folder: Path, looks: Looks, tmp_path: Path
) -> None:
    local = tmp_path / "cache" if is_copied else None
    for _ in range(3):
        found = obtain(folder, local)
        assert counts(found.index) == [1, 2, 3]
        assert found.root == str(folder)
        assert (found.directory.path == local) is is_copied
    assert sorted(looks) == ["0.jsonl", "1.jsonl", "2.jsonl"]


def test_nothing_is_written_to_the_folder_of_local_files(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    os.chmod(folder, 0o555)
    try:
        obtain(folder)
    finally:
        os.chmod(folder, 0o755)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_changed_file_is_looked_through_again(
    is_copied: bool, folder: Path, looks: Looks, tmp_path: Path
) -> None:
    local = tmp_path / "cache" if is_copied else None
    first = obtain(folder, local)
    looks.clear()
    touch_back(folder / "1.jsonl", b"\n" * 9 + b'{"a": 1}\n')
    second = obtain(folder, local)
    assert counts(second.index) == [1, 1, 3]
    assert looks == ["1.jsonl"]
    assert first.directory.digest != second.directory.digest
    write(folder / "4.jsonl", b'{"a": 1}\n')
    (folder / "0.jsonl").unlink()
    assert counts(obtain(folder, local).index) == [1, 3, 1]
    assert looks == ["1.jsonl", "4.jsonl"]


def test_tables_of_files_that_are_gone_are_removed(folder: Path) -> None:
    kept = obtain(folder).directory.path / ".streaming" / "index"
    assert len(list(kept.glob("*.starts"))) == 3
    (folder / "0.jsonl").unlink()
    touch_back(folder / "1.jsonl", b"\n" * 9 + b'{"a": 1}\n')
    obtain(folder)
    assert len(list(kept.glob("*.starts"))) == 2
    assert not list(kept.glob("look-*"))


def test_a_copy_of_a_file_that_was_replaced_is_removed(folder: Path, tmp_path: Path) -> None:
    """One of the same size would look whole."""
    local = tmp_path / "cache"
    obtain(folder, local)
    for name in ("0.jsonl", "1.jsonl", "2.jsonl"):
        (local / name).write_bytes((folder / name).read_bytes())
    touch_back(folder / "1.jsonl", b"\n" * 9 + b'{"a": 1}\n')
    (folder / "2.jsonl").unlink()
    obtain(folder, local)
    assert sorted(path.name for path in local.glob("*.jsonl")) == ["0.jsonl"]


def test_copies_in_a_folder_of_the_files_are_no_files(folder: Path) -> None:
    local = folder / "sub" / "cache"
    write(folder / "sub" / "3.jsonl", b'{"a": 1}\n' * 4)
    for _ in range(2):
        assert counts(obtain(folder, local).index) == [1, 2, 3, 4]
        write(local / "0.jsonl", b'{"a": 1}\n')


@pytest.mark.parametrize("place", ["", "/*.jsonl", "/0.jsonl"])
def test_files_are_not_copied_to_where_they_are(place: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match="`local` is .*, where the files themselves are"):
        obtain(f"{folder}{place}", folder)


def test_what_was_said_of_files_makes_another_index(tmp_path: Path, looks: Looks) -> None:
    path = write(tmp_path / "a.csv", 'a,b\n1,"2\n3"\n')
    assert counts(obtain(path).index) == [1]
    assert counts(obtain(path, options={"quoting": False}, columns={"a": "str"}).index) == [2]
    assert counts(obtain(path).index) == [1]
    assert looks == ["a.csv"] * 2


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 2, "entries": []}', b"\xff"])
def test_what_was_kept_and_is_broken_is_found_anew(
    damage: bytes, folder: Path, looks: Looks
) -> None:
    kept = obtain(folder).directory.path / ".streaming" / "index"
    for document in kept.glob("*.json"):
        document.write_bytes(damage)
    assert counts(obtain(folder).index) == [1, 2, 3]
    assert len(looks) == 6


def test_a_table_that_is_missing_is_made_anew(folder: Path, looks: Looks) -> None:
    kept = obtain(folder).directory.path / ".streaming" / "index"
    next(iter(kept.glob("*.starts"))).unlink()
    looks.clear()
    assert counts(obtain(folder).index) == [1, 2, 3]
    assert len(looks) == 1
    assert len(list(kept.glob("*.starts"))) == 3


def test_what_was_found_before_an_error_is_kept(folder: Path, looks: Looks) -> None:
    bad = write(folder / "3.jsonl", b"no json")
    with pytest.raises(DataError, match="3.jsonl, line 1"):
        obtain(folder)
    looks.clear()
    write(bad, b"{}\n")
    assert counts(obtain(folder).index) == [1, 2, 3, 1]
    assert "0.jsonl" not in looks


def test_many_at_once_look_only_once(folder: Path, looks: Looks, tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    def start(_: int) -> list[int]:
        barrier.wait(10)
        return counts(obtain(folder, tmp_path / "cache").index)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(start, range(4))) == [[1, 2, 3]] * 4
    assert sorted(looks) == ["0.jsonl", "1.jsonl", "2.jsonl"]


def test_what_a_killed_process_has_left_is_removed_and_the_next_goes_on(
    folder: Path, tmp_path: Path
) -> None:
    """It dies in the second file, with the first one's table and the lock in its hands."""
    write(folder / "1.jsonl", b"").rename(folder / "1.jsonl.gz")
    write(folder / "1.jsonl.gz", b'{"a": 1}\n' * 2)
    script = f"""
import os
import signal
from pathlib import Path
from streaming.format.listing import Place
from streaming.format.text import indexing
from streaming.shared.plain import PlainData, obtain_plain_index

class Dying(indexing.File):
    def read_into(self, *args):
        if self.name.endswith("1.jsonl.gz"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().read_into(*args)

indexing.File, indexing._LOCAL_THREADS = Dying, 1
place = Place.parse({str(folder)!r})
obtain_plain_index(PlainData(place=place, local=Path({str(tmp_path / "cache")!r})))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    kept = tmp_path / "cache" / ".streaming" / "index"
    assert list(kept.glob("*.part"))
    assert list(kept.glob("look-*"))
    assert counts(obtain(folder, tmp_path / "cache").index) == [1, 2, 3]
    assert not list(kept.glob("*.part"))
    assert not list(kept.glob("look-*"))


def test_other_files_get_a_folder_of_their_own(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = tmp_path / "cache"
    assert obtain(f"{folder}/[01].jsonl", local).directory.path == local
    (local / "0.jsonl").write_bytes(b"")
    with caplog.at_level(logging.INFO, "streaming"):
        other = obtain(f"{folder}/2.jsonl", local)
    assert other.directory.path.parent == local
    assert "holds files of another source" in caplog.text
    assert obtain(f"{folder}/2.jsonl", local).directory == other.directory


def test_shards_are_files_in_order_and_pinned(folder: Path, tmp_path: Path) -> None:
    write(folder / "sub" / "z.jsonl.gz", b'{"a": 1}\n' * 5)
    write(folder / "empty.jsonl", b"\n\n")
    index = obtain(folder, tmp_path / "cache").index
    infos = list(index)
    assert [info.samples for info in infos] == [1, 2, 3, 5]
    assert [info.files[0][0].basename for info in infos][-1] == "sub/z.jsonl"
    raw, zipped = infos[-1].files[0]
    assert zipped is not None
    assert (zipped.basename, raw.bytes) == ("sub/z.jsonl.gz", 45)
    assert infos[-1].compression == "gz"
    assert zipped.etag
    assert infos[0].files[0][0].etag
    in_place = list(obtain(folder).index)
    assert in_place[0].files[0][0].basename == str(folder / "0.jsonl")
    assert in_place[-1].files[0][0].basename == "sub/z.jsonl"
    assert len(index.examples()) == 2


def test_a_large_file_has_a_table_of_wider_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "MAX_U32", 18)
    widths = [info.extra["table"][2] for info in obtain(folder).index]
    assert widths == [4, 4, 8]


def test_a_file_that_grows_meanwhile_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Any] = scan.File.__init__

    def grow(self: Any, path: Path, name: str | None = None) -> None:
        with path.open("ab") as file:
            file.write(b"{}\n")
        original(self, path, name)

    monkeypatch.setattr(scan.File, "__init__", grow)
    with pytest.raises(DataError, match=r"0.jsonl is being written to: it had 9 bytes, .* 12"):
        obtain(f"{folder}/0.jsonl")


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2"])
def test_a_compressed_file_that_is_broken_is_named(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.jsonl.{ending}", b'{"a": 1}\n' * 100)
    path.write_bytes(path.read_bytes()[:-9])
    for local in (None, tmp_path / "cache"):
        with pytest.raises(DataError, match=rf"a.jsonl.{ending} is no valid"):
            obtain(path, local)


def test_nothing_to_read_is_no_index(tmp_path: Path) -> None:
    write(tmp_path / "README.md", b"")
    place = Place.parse(tmp_path)
    assert obtain_plain_index(PlainData(place=place, local=None)) is None


def test_a_dataset_below_is_left_to_its_index(folder: Path) -> None:
    write(folder / "train" / "index.json", b"{}")
    assert obtain_plain_index(PlainData(place=Place.parse(folder), local=None)) is None
    assert counts(obtain(folder, format="jsonl").index) == [1, 2, 3]


def test_named_files_without_a_known_ending_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"a\n1\n")
    with pytest.raises(ConfigError, match='say no format .*format="csv"'):
        obtain(f"{tmp_path}/*.txt")
    assert counts(obtain(f"{tmp_path}/*.txt", format="csv").index) == [1]


def test_a_format_that_needs_an_index_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.mds", b"")
    with pytest.raises(ConfigError, match="mds data can't be read without an index"):
        obtain(tmp_path, format="mds")


def test_a_directory_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "cache", b"a file")
    with pytest.raises(CacheError, match="cache"):
        obtain(folder, tmp_path / "cache")
