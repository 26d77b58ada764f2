"""Virtual environments for the libraries to compare with, one each, filled from PyPI."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["PACKAGES", "fill"]

# torch is installed first and alone, by the version that this library is tested with: a build that
# pip knows of (say, one for the CPU only) is in place before anything else could bring another.
_TORCH = "torch==2.13.0"
_ALL = ("numpy", "pillow")  # What the measuring itself needs.
PACKAGES: dict[str, tuple[str, ...]] = {
    "mosaic": ("mosaicml-streaming==0.13.0",),
    "litdata": ("litdata==0.2.76",),
    "hf": ("datasets==5.2.0",),
    "lance": ("pylance==14.0.2", "pyarrow"),
    "arrow": ("pyarrow==26.0.1",),
    "array_record": ("array-record==0.8.6", "msgpack"),
}


def fill(folder: Path) -> dict[str, Path]:
    """Make what is missing of the environments; those that can't be filled are named and left out.

    Args:
        folder: Where they are. Each takes about a GB, or several with a torch that is for GPUs.

    Returns:
        Name of a library to its environment.
    """
    found = {}
    for name, own in PACKAGES.items():
        place = folder / name
        ready = place / "ready"
        packages = (*own, *_ALL)
        said = " ".join((_TORCH, *packages))
        if not ready.exists() or ready.read_text() != said:
            print(f"Filling {place} with {', '.join(packages)} ...", file=sys.stderr, flush=True)
            fault = _make(place, packages)
            if fault is not None:
                print(f"{name} is left out: {fault}", file=sys.stderr, flush=True)
                shutil.rmtree(place, ignore_errors=True)
                continue
            ready.write_text(said)
        found[name] = place
    return found


def _make(place: Path, packages: tuple[str, ...]) -> str | None:
    """Make an environment; what pip says last if that fails."""
    venv.create(place, clear=True, with_pip=True, symlinks=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    for some in ((_TORCH,), packages):
        done = subprocess.run([*pip, "-q", *some], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return lines[-1] if lines else f"pip ended with {done.returncode}"
    return None
