"""The versions that a verdict depends on."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from duewheel import __version__
from duewheel.java.find import find_java


def versions() -> dict[str, str]:
    """Of duewheel, its libraries, Java, Python and the system, by name."""
    packages = {name: metadata.version(name) for name in ("pyspark", "kafka-python", "pyarrow")}
    return {
        "duewheel": __version__,
        **packages,
        "java": find_java().version,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} processors",
    }
