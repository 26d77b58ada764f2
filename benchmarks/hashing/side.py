"""All hashes of either library in one process: CPU seconds of one digest, by name and size."""

import json
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")


def main() -> None:
    """Answer a request: `sizes` in bytes, `seconds` after which a hash is not tried on more."""
    request = json.loads(sys.argv[1])
    try:
        from streaming.base.hashing import get_hash, get_hashes
    except ImportError:
        from streaming.hashing import get_hash, get_hashes
    data = np.random.default_rng(0).bytes(max(request["sizes"]))
    found: dict[str, dict[str, float]] = {}
    for algo in sorted(get_hashes()):
        found[algo] = {}
        for size in request["sizes"]:
            piece = data[:size]
            digest = get_hash(algo, piece)
            times = max(1, min(1000, (1 << 22) // size))
            start = time.process_time()
            for _ in range(times):
                get_hash(algo, piece)
            seconds = (time.process_time() - start) / times
            found[algo][str(size)] = seconds
            found[algo]["characters"] = len(digest)
            if seconds > request["seconds"]:
                break
    print(json.dumps({"hashes": found}))


if __name__ == "__main__":
    main()
