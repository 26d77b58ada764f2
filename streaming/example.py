"""What the datasets of `streaming.vision`, `streaming.text` and `streaming.multimodal` share."""

from streaming.constant import DEFAULT_RETRY, DEFAULT_TIMEOUT
from streaming.dataset import StreamingDataset

__all__ = ["ExampleDataset"]


class ExampleDataset(StreamingDataset):
    """A dataset of one stream with the predecessor's old defaults, which its examples kept.

    Args:
        remote, local, split, download_retry, download_timeout, validate_hash, keep_zip: As for a
            Stream.
        epoch_size, predownload, cache_limit, partition_algo, num_canonical_nodes, batch_size,
            shuffle, shuffle_algo, shuffle_seed, shuffle_block_size: As for a StreamingDataset,
            whose defaults are `relaxed` and `py1e`, with a block size that depends on the nodes.
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = DEFAULT_RETRY,
        download_timeout: float = DEFAULT_TIMEOUT,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        partition_algo: str = "orig",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1s",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = 1 << 18,
    ) -> None:
        super().__init__(
            remote=remote,
            local=local,
            split=split,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
            epoch_size=epoch_size,
            predownload=predownload,
            cache_limit=cache_limit,
            partition_algo=partition_algo,
            num_canonical_nodes=num_canonical_nodes,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
        )
