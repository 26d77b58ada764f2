"""What a source is told that asks torch which worker it is in."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["seen_as_worker"]


@contextmanager
def seen_as_worker(worker_id: int, num_workers: int) -> Iterator[None]:
    """Let `torch.utils.data.get_worker_info()` tell of this worker inside the block.

    A source that shards itself by what torch tells would do so by the worker that happens to run
    its logical stream. One worker of one is no worker: None is told. Without torch nobody asks.
    """
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if module is None:
        yield
        return
    # There is no public way to set it. The name has been the same since torch 1.2.
    real = module._worker_info
    if num_workers == 1:
        module._worker_info = None
    elif real is None or (real.id, real.num_workers) != (worker_id, num_workers):
        seed = 0 if real is None else real.seed - real.id + worker_id
        module._worker_info = module.WorkerInfo(
            id=worker_id, num_workers=num_workers, seed=seed, dataset=None
        )
    try:
        yield
    finally:
        module._worker_info = real
