"""Is this package the one that was meant? Others install a folder `streaming/` as well."""

import os
from pathlib import Path

__all__ = ["check_installation"]

# Files that only another distribution's `streaming/` has.
_FOREIGN = ("_version.py", "base/dataset.py", "base/stream.py", "vision/base.py")
# Distributions that install `streaming/`, as pip writes their names in folders; and ours.
_OTHERS = ("mosaicml_streaming", "mosaicml_streaming_nightly", "streaming")
_OURS = "goldenspike"


def check_installation(package: Path) -> None:
    """Make sure that only this distribution has put files into the package's folder.

    With two in one folder, Python imports a mixture of both, and removing either breaks the other.

    Args:
        package: The folder of the package.

    Raises:
        ImportError: Another distribution has installed into it, too.
    """
    files = [name for name in _FOREIGN if (package / name).exists()]
    others = [name for name in _installed(package.parent) if name.partition("-")[0] in _OTHERS]
    if not files and not others:
        return
    who = " and ".join(others) or "a distribution that is not registered any more"
    names = " ".join(sorted({name.partition("-")[0].replace("_", "-") for name in others}))
    raise ImportError(
        f"{package} holds files of two distributions: {_OURS}, and {who}"
        f"{f' (such as {files[0]})' if files else ''}. Both install `streaming/`, so Python would "
        f"import a mixture. Remove both, then install one:\n"
        f"    pip uninstall --yes {names + ' ' if names else ''}{_OURS}\n"
        f"    rm -rf {package}\n"
        f"    pip install {_OURS}",
        name="streaming",
    )


def _installed(folder: Path) -> list[str]:
    """Names and versions of the distributions that pip installed into a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []  # In a zip file, say, where nobody else can be.
    endings = (".dist-info", ".egg-info")
    return sorted(name.rpartition(".")[0] for name in names if name.endswith(endings))
