"""What the predecessor shared among processes, by global names. Here it is files under locks."""

from streaming.constant import TICK
from streaming.util.migration import removed

__all__ = [
    "TICK",
    "TIMEOUT",
    "SharedArray",
    "SharedBarrier",
    "SharedMemory",
    "SharedScalar",
    "get_shm_prefix",
]

_INSTEAD = (
    "nothing has a global name any more, and nothing waits at a barrier. What processes of a node "
    "share is files under kernel locks, see `streaming.shared`; to share memory of your own, use "
    "`multiprocessing.shared_memory`."
)

TIMEOUT = 60.0  # seconds; nothing uses it

SharedArray = removed("SharedArray", _INSTEAD)
SharedBarrier = removed("SharedBarrier", _INSTEAD)
SharedMemory = removed("SharedMemory", _INSTEAD)
SharedScalar = removed("SharedScalar", _INSTEAD)
get_shm_prefix = removed("get_shm_prefix", _INSTEAD)
_get_path = removed("_get_path", _INSTEAD)
