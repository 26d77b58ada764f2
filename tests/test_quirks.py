"""The predecessor's oddities, each with the tests that show what became of it.

Numbers are those of the list of oddities that this library was specified with. "Fix": it harmed
users, and can't happen here. "Keep": part of orders and files that are equal bit for bit.
"""

import ast
import gc
import glob
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import ConfigError, EncodeError, ObjectNotFoundError, UnknownNameError
from streaming.format.mds.encodings import mds_decode, mds_encode
from streaming.util import clean_stale_shared_memory, get_import_exception_message
from tests.common.shards import sample, write_dataset
from tests.conftest import RunPython

RECORDED_ORDERS = (
    "test_partitions_are_the_recorded_ones",
    "test_case_U9_shuffles_are_the_recorded_ones",
    "test_epochs_are_the_recorded_ones",
)

FIX: dict[str, tuple[str, ...]] = {
    "1 a tight limit hangs": (
        "test_case_S11_a_tight_limit_neither_hangs_nor_is_exceeded",
        "test_a_shard_evicted_before_its_use_is_fetched_again",
    ),
    "2 a failure leaves a shard in preparation for ever": (
        "test_a_failed_shard_leaves_nothing_and_can_be_asked_for_again",
        "test_a_failed_shard_is_tried_again_when_waited_for_again",
        "test_case_H2_a_killed_owner_frees_its_shard",
    ),
    "3 a file with a wrong checksum is read the next time": (
        "test_case_S8_a_corrupt_remote_is_an_error_with_shard_and_both_digests",
        "test_case_S8_one_corrupt_download_is_repeated",
    ),
    "3a a truncated cached file is used": (
        "test_case_F4_a_truncated_cached_shard_is_fetched_again",
    ),
    "3b a rank's exit takes the resumed place of others": (
        "test_quirk_3b_each_rank_keeps_the_place_it_resumed_at",
    ),
    "4 raw files go in place of compressed ones": (
        "test_quirk_4_raw_files_stay_when_compressed_ones_need_not",
    ),
    "5 merge_index removes the shards": (
        "test_without_a_remote_nothing_is_removed",
        "test_the_index_goes_to_the_remote_and_shards_stay",
    ),
    "6 eviction deletes the only copy": (
        "test_quirk_6_the_only_copy_is_never_evicted",
        "test_case_S10_local_files_are_untouched_by_a_limit",
    ),
    "7 the index comes before the shards": (
        "test_the_index_comes_last",
        "test_case_S6_the_first_failure_is_raised_and_calls_off_the_rest",
    ),
    "8 an exception ends in a valid index": (
        "test_case_F14_an_exception_in_the_block_leaves_no_index",
    ),
    "9 a first sample over the limit": ("test_a_sample_over_the_limit_has_a_shard_of_its_own",),
    "10 big-endian arrays": ("test_big_endian_arrays_are_stored_little_endian",),
    "11 a barrier without a limit": ("test_a_killed_run_leaves_nothing_that_hinders_the_next",),
    "12 lock files stay": ("test_quirk_12_runs_leave_nothing_in_the_temporary_directory",),
    "13 the cleaner harms running jobs": ("test_case_H13_a_running_job_is_unharmed",),
    "14 errors of GCS are swallowed": (
        "test_google_with_hmac_keys_is_spoken_to_as_s3",
        "test_each_failure_is_an_error_of_its_own_with_all_it_carries",
    ),
    "15 public buckets without credentials": (
        "test_without_credentials_requests_go_unsigned_as_to_public_buckets",
    ),
    "16 the message on a bucket never appears": (
        "test_denied_credentials_are_named_by_where_they_come_from",
    ),
    "17 half a file under its final name": (
        "test_it_comes_under_another_name_beside_the_file",
        "test_case_S14_a_short_download_never_gets_its_name",
    ),
    "18 sftp": ("test_each_failure_is_an_error_of_its_own_with_all_it_carries",),
    "19 uploads to Hugging Face go to the root": (
        "test_case_S5_a_file_of_a_subfolder_goes_to_that_of_the_place",
        "test_what_is_at_the_remote_need_not_stay",
    ),
    "20 two forms of Azure addresses": ("test_both_forms_of_azure_addresses_are_known",),
    "21 paths of DBFS lose letters": ("test_quirk_21_a_path_like_the_scheme_stays_whole",),
    "22 any JSON file is an index": ("test_other_json_files_are_no_indexes",),
    "23 merging twice fails": ("test_merging_again_replaces_the_index",),
    "24 nested partitions": ("test_nested_folders_keep_their_whole_path",),
    "25 merged order and mismatch": (
        "test_folders_come_in_the_order_of_their_names_as_text",
        "test_a_mismatch_of_local_and_remote_is_warned_of",
    ),
    "26 merge_index by keyword": ("test_all_arguments_may_be_given_by_name",),
    "27 a stream serves one dataset": (
        "test_weights_mix_streams_and_a_stream_may_serve_two_datasets",
    ),
    "28 a stream without `local`": (
        "test_without_local_the_next_run_finds_what_the_last_one_downloaded",
        "test_quirk_28_a_stream_without_anything_says_what_is_missing",
    ),
    "29 ~ in `out`": ("test_a_home_directory_is_expanded_once",),
    "30 exist_ok": ("test_a_directory_is_replaced_if_asked_for",),
    "31 download_retry": ("test_quirk_31_no_retry_is_one_try",),
    "32 download_timeout": ("test_quirk_32_the_timeout_reaches_the_store",),
    "33 palettes": ("test_the_transparent_colour_of_a_palette_survives",),
    "34 JPEG files are copied": (
        "test_an_untouched_jpeg_file_is_stored_as_it_is",
        "test_a_changed_jpeg_file_is_compressed_again",
        "test_a_replaced_jpeg_file_is_not_taken_for_the_image",
    ),
    "35 a hook that is gone": (
        "test_an_override_of_what_is_gone_warns_where_the_class_stands",
        "test_videos_beside_the_shards_are_fetched",
    ),
    "36 scripts that can't run": ("test_scripts_that_are_gone_say_what_to_do",),
    "37 indexing": ("test_indexing_is_as_recorded_or_better",),
    "38 messages": ("test_quirk_38_messages_say_what_they_mean",),
    "39 save_registry": ("test_registrations_of_a_block_end_with_it_also_when_it_fails",),
    "40 threads stay": (
        "test_closing_ends_the_threads_and_begins_nothing_more",
        "test_an_abandoned_prefetcher_ends_its_threads",
    ),
    "41 a lock for each look": ("test_a_whole_cache_is_read_where_no_state_can_be_kept",),
    "42 unknown keys of an index": ("test_unknown_keys_are_ignored",),
    "43 a hash twice": ("test_quirk_43_a_hash_twice_is_refused",),
    "44 assertions for what users do": (
        "test_quirk_44_wrong_values_are_refused_without_assertions",
    ),
    "45 is_mds_encoding raises": ("test_a_bad_name_is_not_an_encoding",),
    "46 bytes go unchecked (kept)": ("test_quirk_46_bytes_are_stored_as_they_are",),
    "47 write after finish": ("test_a_finished_writer_takes_no_more",),
    "48 arguments of the caller change": (
        "test_a_stream_class_is_found_by_its_name",
        "test_each_partition_becomes_a_part_and_all_one_dataset",
    ),
    "50 helpers of a branch": ("test_quirk_50_durations_keep_their_fraction",),
}
# Not here: what they are about is not part of this library, or not yet.
ELSEWHERE = {
    "49": "the simulator",
}

KEEP: dict[str, tuple[str, ...]] = {
    "K1 whole rows of padding": RECORDED_ORDERS,
    "K2 overlapping blocks of py1br": RECORDED_ORDERS,
    "K3 the slack of a partition": RECORDED_ORDERS,
    "K4 partial repeats change with the epoch": (
        "test_case_U2_partial_choices_rotate_with_the_epoch_unless_fixed",
        "test_shards_are_drawn_as_recorded",
    ),
    "K5 a generator for each stream": RECORDED_ORDERS,
    "K6 the mix of a global batch": RECORDED_ORDERS,
    "K7 a state beyond the epoch": (
        "test_a_state_of_an_epochs_end_goes_on_with_the_next_epoch",
        "test_a_state_loads_at_every_batch_of_a_padded_epoch",
    ),
    "K8 a state from before the first epoch": (
        "test_quirk_K8_a_state_from_before_the_first_epoch_changes_nothing",
    ),
    "K9 old defaults of the examples": ("test_quirk_K9_examples_keep_the_old_defaults",),
    "K10 repeats at the ends": (
        "test_case_U8_ranks_have_no_sample_in_common_but_repeats",
        *RECORDED_ORDERS,
    ),
    "K11 a merged index is not sorted": ("test_merged_indexes_are_byte_for_byte_the_predecessors",),
    "K12 ties": RECORDED_ORDERS,
}


@cache
def all_tests() -> frozenset[str]:
    found = set()
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(node.name)
    return frozenset(found)


@pytest.mark.parametrize(("quirk", "tests"), [*FIX.items(), *KEEP.items()])
def test_the_tests_of_a_quirk_are_there(quirk: str, tests: tuple[str, ...]) -> None:
    assert [name for name in tests if name not in all_tests()] == []


def test_no_quirk_is_left_out() -> None:
    numbers = {quirk.partition(" ")[0] for quirk in FIX} | ELSEWHERE.keys()
    assert numbers == {str(number) for number in range(1, 51)} | {"3a", "3b"}
    assert {quirk.partition(" ")[0] for quirk in KEEP} == {f"K{i}" for i in range(1, 13)}


def test_quirk_3b_each_rank_keeps_the_place_it_resumed_at(tmp_path: Path) -> None:
    root = str(write_dataset(tmp_path / "data"))
    state = {
        "epoch": 2,
        "sample_in_epoch": 8,
        "num_canonical_nodes": 1,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 1,
    }
    ranks = [StreamingDataset(local=root, batch_size=2, shuffle=True) for _ in range(2)]
    for dataset in ranks:
        dataset.load_state_dict(state)
    del dataset
    ranks.pop(0)  # The one that was first.
    gc.collect()
    found = ranks[0].state_dict(4, from_beginning=False)
    assert (found["epoch"], found["sample_in_epoch"]) == (2, 12)


def test_quirk_4_raw_files_stay_when_compressed_ones_need_not(tmp_path: Path) -> None:
    remote, local = write_dataset(tmp_path / "remote", compression="zstd"), tmp_path / "local"

    def open_(keep_zip: bool) -> StreamingDataset:
        return StreamingDataset(
            remote=str(remote), local=str(local), batch_size=5, keep_zip=keep_zip
        )

    with_zip = open_(True)
    assert len(list(with_zip)) == 20
    kept = {path: path.stat().st_ino for path in local.glob("*.mds")}
    del with_zip
    assert len(list(local.glob("*.zstd"))) == len(kept) == 4
    without = open_(False)
    assert next(each["x"] for each in without) == sample(0, 0)
    assert {path: path.stat().st_ino for path in local.glob("*.mds")} == kept


def test_quirk_6_the_only_copy_is_never_evicted(tmp_path: Path) -> None:
    for name, compression in {"raw": None, "zip": "zstd"}.items():
        root = write_dataset(tmp_path / name, compression=compression)
        before = {path.name: path.read_bytes() for path in root.iterdir()}
        for remote in (None, str(root)):
            dataset = StreamingDataset(local=str(root), remote=remote, batch_size=5)
            assert dataset[7]["x"] == sample(1, 2)
            for shard in range(4):
                dataset.evict_shard(shard)
            assert {name: (root / name).read_bytes() for name in before} == before
            assert dataset[7]["x"] == sample(1, 2)
            del dataset


def test_quirk_12_runs_leave_nothing_in_the_temporary_directory(
    tmp_path: Path, run_python: RunPython
) -> None:
    root, temporary = write_dataset(tmp_path / "data"), tmp_path / "tmp"
    temporary.mkdir()
    script = """
import sys
from streaming import StreamingDataLoader, StreamingDataset
dataset = StreamingDataset(local=sys.argv[1], batch_size=5, shuffle=True)
print(sum(len(batch["x"]) for batch in StreamingDataLoader(dataset, batch_size=5, num_workers=1)))
"""
    before = set(glob.glob("/dev/shm/*_locals"))
    for _ in range(2):
        assert run_python(script, root, env={"TMPDIR": str(temporary)}).stdout == "20\n"
    assert os.listdir(temporary) == []
    assert set(glob.glob("/dev/shm/*_locals")) - before == set()


def test_quirk_28_a_stream_without_anything_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`remote`, `local` or both"):
        Stream()
    split = Stream(remote=str(tmp_path / "remote"), split="train")
    assert str(split.directory).count("train") == 1


def test_quirk_31_no_retry_is_one_try(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    dataset = write_dataset(tmp_path / "remote")
    one = StreamingDataset(
        remote=str(dataset), local=str(tmp_path / "local"), batch_size=1, download_retry=0
    )
    assert len(list(one)) == 20
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(remote=missing, local=str(tmp_path / "l"), batch_size=1, download_retry=0)
    with pytest.raises(ConfigError, match="download_retry"):
        Stream(remote=missing, local="x", download_retry=-1)


def test_quirk_32_the_timeout_reaches_the_store(tmp_path: Path) -> None:
    stream = Stream(remote=str(tmp_path), local=str(tmp_path / "local"), download_timeout=3)
    stream.apply_default({"download_timeout": 60, "download_retry": 2})
    source = stream.plain_source()
    assert source is not None
    assert source.options["timeout"] == 3


def test_quirk_38_messages_say_what_they_mean(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no store for nope:// URLs. Known: .*s3://"):
        Stream(remote="nope://bucket/x", local="x")
    message = get_import_exception_message("pyspark", "spark")
    assert "'pyspark'" in message
    assert "goldenspike[spark]" in message
    root = str(write_dataset(tmp_path / "data"))
    dataset = StreamingDataset(local=root, batch_size=1)
    # The predecessor has 4,096 bytes for a state; here it may be longer.
    state = {**dataset.state_dict(3, True), "epoch": 0, "note": "x" * 10_000}
    dataset.load_state_dict(state)
    assert dataset.state_dict(0, False)["sample_in_epoch"] == 3


def test_quirk_43_a_hash_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="each once"):
        MDSWriter(out=str(tmp_path / "x"), columns={"i": "int"}, hashes=["md5", "md5"])


def test_quirk_44_wrong_values_are_refused_without_assertions(run_python: RunPython) -> None:
    script = """
import tempfile
from streaming import CSVWriter, JSONWriter, MDSWriter
from streaming.errors import StreamingError

assert False  # Does nothing under -O, which this is run with.
for writer, column, value in [
    (JSONWriter, "int", "5"), (CSVWriter, "str", "a,b"), (MDSWriter, "ndarray:int32:2", [1]),
]:
    try:
        with writer(out=tempfile.mkdtemp(), columns={"x": column}) as out:
            out.write({"x": value})
    except (StreamingError, ValueError) as error:
        print(writer.__name__, type(error).__name__)
"""
    output = run_python(script, env={"PYTHONOPTIMIZE": "1"}).stdout.split("\n")
    assert [line.split(" ")[0] for line in output if line] == [
        "JSONWriter",
        "CSVWriter",
        "MDSWriter",
    ]


def test_quirk_46_bytes_are_stored_as_they_are(tmp_path: Path) -> None:
    assert mds_encode("str", b"\xff") == b"\xff"
    assert mds_encode("pkl", b"x") == b"x"
    data = np.int64(5).tobytes()
    assert mds_decode("int", mds_encode("int", data)) == 5
    with (
        pytest.raises(EncodeError),
        MDSWriter(out=str(tmp_path / "x"), columns={"i": "int"}) as out,
    ):
        out.write({"i": b"1"})  # What has a fixed size is looked at all the same.


def test_quirk_50_durations_keep_their_fraction() -> None:
    from streaming.util.pretty import normalize_duration

    assert normalize_duration("1.5s") == 1.5
    assert normalize_duration("1h30m") == 5400.0


def test_quirk_K8_a_state_from_before_the_first_epoch_changes_nothing(tmp_path: Path) -> None:
    root = str(write_dataset(tmp_path / "data"))
    dataset = StreamingDataset(local=root, batch_size=4, shuffle=True)
    state = dataset.state_dict(0, from_beginning=False)
    assert (state["epoch"], state["sample_in_epoch"]) == (-1, 0)
    other = StreamingDataset(local=root, batch_size=4, shuffle=True)
    other.load_state_dict(state)
    assert [each["x"] for each in other] == [each["x"] for each in dataset]
    assert other.next_epoch == 1


def test_case_H1_many_that_start_at_once_do_not_meet(tmp_path: Path, run_python: RunPython) -> None:
    # 16 processes that make 50 datasets each, all at once: 800 chances to choose the same name.
    root = write_dataset(tmp_path / "data", 2, 3)
    script = """
import multiprocessing, sys
import streaming.dataset
from streaming import StreamingDataset

def make(number, root, folder, start):
    start.wait()
    for i in range(50):
        dataset = StreamingDataset(
            remote=root, local=f"{folder}/{number}-{i % 3}", batch_size=1, shuffle=True
        )
        assert dataset.next_epoch == 0
        if i % 10 == 0:
            assert len(list(dataset)) == 6

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    start = fork.Event()
    args = (sys.argv[1], sys.argv[2], start)
    processes = [fork.Process(target=make, args=(i, *args)) for i in range(16)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""
    output = run_python(script, root, tmp_path / "caches", timeout=110)
    assert output.stdout == f"{[0] * 16}\n", output.stderr
    clean_stale_shared_memory()
    assert LocalDataset(str(root)).size == 6
    loader = StreamingDataLoader(StreamingDataset(local=str(root), batch_size=2), batch_size=2)
    assert len(list(loader)) == 3
    assert not glob.glob(f"{tempfile.gettempdir()}/*filelock")
