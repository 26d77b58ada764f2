import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import binary, lists

from streaming.errors import ConfigError, UnknownNameError
from streaming.hashing import Digest, file_digest, get_hash, get_hashes, hashes, is_hash

TEXT = b"The quick brown fox \x00\xff" * 10


@pytest.fixture(scope="module")
def recorded(golden: Path) -> dict[str, str]:
    table: dict[str, Any] = json.loads((golden / "misc.json").read_text())
    return dict(table["hashes"])


def test_the_names_are_the_predecessors(recorded: dict[str, str]) -> None:
    assert get_hashes() == set(recorded)
    assert all(map(is_hash, recorded))


def test_the_digests_are_the_predecessors(recorded: dict[str, str]) -> None:
    assert {name: get_hash(name, b"The golden spike, 1869.") for name in recorded} == recorded


@pytest.mark.parametrize("name", sorted(get_hashes()))
def test_pieces_and_files_give_the_digest_of_the_whole(name: str, tmp_path: Path) -> None:
    data = TEXT * 60_000  # Over one buffer.
    digest = Digest(name)
    for start in range(0, len(data), 999_983):
        digest.update(memoryview(data)[start : start + 999_983])
    (tmp_path / "file").write_bytes(data)
    assert digest.hexdigest() == get_hash(name, data) == file_digest(name, tmp_path / "file")
    assert digest.algo == name


@given(lists(binary(max_size=50), max_size=5))
def test_how_bytes_are_cut_makes_no_difference(pieces: list[bytes]) -> None:
    digest = Digest("sha256")
    for piece in pieces:
        digest.update(piece)
    assert digest.hexdigest() == hashlib.sha256(b"".join(pieces)).hexdigest()


@pytest.mark.parametrize("name", ["", "MD5", "shake_128", "sha-1", "crc32"])
def test_an_unknown_name_is_refused(name: str) -> None:
    assert not is_hash(name)
    with pytest.raises(UnknownNameError, match="xxh64") as caught:
        get_hash(name, b"")
    assert isinstance(caught.value, ConfigError)


def test_another_hash_can_be_added() -> None:
    hashes.register("test-md5", hashlib.md5)
    try:
        assert get_hash("test-md5", b"x") == hashlib.md5(b"x").hexdigest()
    finally:
        del hashes._entries["test-md5"]
