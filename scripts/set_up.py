"""Make .venv ready: everything `make demo` and `make test` need, installed once.

    python3 scripts/set_up.py [--dev]

    1. the virtual environment .venv, made by the Python that runs this script
    2. the packages of a hashed lock file: requirements.txt, or with --dev requirements-dev.txt;
       what has to be built is built by the hashed setuptools of requirements-build.txt
    3. duewheel itself, editable
    4. a Java: the one found, or else the JDK wheel of requirements-jdk.txt
    5. the pinned jars of the development broker, in the cache directory
    6. archives of the classes of both, beside the jars and in .venv: their starts are quicker

Steps 2 and 3 leave a stamp with the hash of all that they depend on and are skipped while it
fits; 4 to 6 look for themselves. They are refused while a program runs from .venv, such as a shard:
it would import a mixture. Only the standard library: this runs before anything is there.

One works at a time. SIGTERM and Ctrl-C stop it in order, and the next run goes on; the exit code is
then 130.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"

BUILD_LOCK = ROOT / "requirements-build.txt"
BASE_LOCK = ROOT / "requirements.txt"
DEV_LOCK = ROOT / "requirements-dev.txt"
JDK_LOCK = ROOT / "requirements-jdk.txt"

PIP_ATTEMPTS = 3
END_S = 30.0  # in which pip has removed what it had unpacked
TELL_S = 15.0  # between two signs of life of a long step


class Terminated(KeyboardInterrupt):
    """SIGTERM, of which, unlike Ctrl-C in a terminal, our children have not been told."""


def main(arguments: list[str]) -> int:
    """Run the steps; the exit code is that of the first one that fails."""
    if arguments not in ([], ["--dev"]):
        print(__doc__, file=sys.stderr)
        return 2
    # Both would put the repository's top on Python's path, where our folder `wheel` hides the
    # packaging library of that name.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.pop("PYTHONPATH", None)
    signal.signal(signal.SIGTERM, terminate)
    VENV.mkdir(exist_ok=True)
    try:
        with (VENV / ".set-up.lock").open("w") as lock:
            take(lock)
            make_venv()
            install(dev=bool(arguments))
            ensure_java()
            run("-m", "duewheel.dev.jars")
            run("-m", "duewheel.dev.broker_archive")
            run("-m", "duewheel.java.spark_archive")
    except subprocess.CalledProcessError as error:
        print(f"set-up failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return error.returncode
    except KeyboardInterrupt:
        return 130
    return 0


def terminate(*_: object) -> None:
    """The handler of SIGTERM."""
    raise Terminated


def take(lock: TextIO) -> None:
    """Wait until nobody else is at work here.

    What `run` starts inherits the lock: a pip that outlives a killed set-up still writes to .venv.
    """
    os.set_inheritable(lock.fileno(), True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another set-up is at work in {VENV.name}: waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def make_venv() -> None:
    """Step 1. An environment whose Python or pip does not run is recreated."""
    if PYTHON.exists() and runs("-c", "import pip, sys; sys.exit(sys.version_info < (3, 11))"):
        return
    say(f"making {VENV.name} with Python {sys.version.split()[0]}")
    for old in VENV.glob("stamp-*"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)


def install(*, dev: bool) -> None:
    """Steps 2 and 3. An environment for development has all that the plain one has."""
    lock = DEV_LOCK if dev else BASE_LOCK
    if is_installed(DEV_LOCK) or is_installed(lock):
        return
    if found := users():
        say(f"{VENV.name} is out of date, and in use: stop {', '.join(found)} first")
        raise SystemExit(1)
    say(f"installing the packages of {lock.name} (Spark alone is 0.4 GB the first time)")
    pip("--require-hashes", "-r", BUILD_LOCK)
    pip("--require-hashes", "--no-build-isolation", "--use-pep517", "-r", lock)
    pip("--no-deps", "--no-build-isolation", "--editable", ROOT)
    stamp(lock).write_text(digest(lock))


def users() -> list[str]:
    """The programs that run from .venv, each as its process id and command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            program = (process / "cwd").readlink() / words[0]
        except OSError:  # it has ended, or is another user's
            continue
        if program.is_relative_to(VENV):
            found.append(f"{process.name} ({' '.join(words)[:80].strip()})")
    return found


def stamp(lock: Path) -> Path:
    """Where it is noted that a lock file was installed."""
    return VENV / f"stamp-{lock.stem}"


def is_installed(lock: Path) -> bool:
    """Whether the lock file was installed as it is now."""
    return stamp(lock).exists() and stamp(lock).read_text() == digest(lock)


def digest(lock: Path) -> str:
    """Names everything that steps 2 and 3 depend on, this folder's place included."""
    parts = [lock, BUILD_LOCK, ROOT / "setup.py", Path(__file__)]
    contents = [part.read_bytes() for part in parts]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    # Not the settings of other tools.
    declared["tool"] = declared.get("tool", {}).get("setuptools")
    contents.append(json.dumps(declared, sort_keys=True).encode())
    return hashlib.sha256(b"\0".join([*contents, str(ROOT).encode()])).hexdigest()


def ensure_java() -> None:
    """Step 4."""
    if not runs("-m", "duewheel.java.find"):
        say(f"no Java that Spark can start on: installing the one of {JDK_LOCK.name}")
        pip("--require-hashes", "-r", JDK_LOCK)
    run("-m", "duewheel.java.find")


def pip(*arguments: str | Path) -> None:
    """Install, again if it fails: registries and networks have bad moments. pip prints its errors
    only: its line for each package would hide what a reader has to know.
    """
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries=10"]
    options.append("--timeout=60")
    for attempt in range(1, PIP_ATTEMPTS + 1):
        try:
            run("-m", "pip", "install", *options, *arguments, waiting="still installing")
            return
        except subprocess.CalledProcessError:
            if attempt == PIP_ATTEMPTS:
                raise
            say("that failed; trying again in 5 s")
            time.sleep(5)


def run(*arguments: str | Path, waiting: str = "") -> None:
    """Run the environment's Python; raises CalledProcessError if that fails.

    Cut short, it lets the child tidy up: subprocess.run would kill it a quarter of a second later.
    While it runs, `waiting` is said now and then, with the seconds so far.
    """
    begun_s = time.monotonic()
    # It inherits the lock, which is all that is inheritable.
    with subprocess.Popen([PYTHON, "-P", *arguments], cwd=ROOT, close_fds=False) as child:
        try:
            while (code := ended(child, TELL_S if waiting else None)) is None:
                say(f"{waiting}, for {time.monotonic() - begun_s:.0f} s")
        except KeyboardInterrupt as interruption:
            if isinstance(interruption, Terminated):
                child.send_signal(signal.SIGINT)
            try:
                child.wait(END_S)
            finally:
                child.kill()  # nothing, if it has ended
            raise
    if code:
        raise subprocess.CalledProcessError(code, child.args)


def ended(child: subprocess.Popen[bytes], timeout_s: float | None) -> int | None:
    """The exit code; None if it still runs at the time-out."""
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def runs(*arguments: str) -> bool:
    """Whether the environment's Python runs this well, silently."""
    quiet = subprocess.run([PYTHON, "-P", *arguments], cwd=ROOT, capture_output=True, check=False)
    return quiet.returncode == 0


def say(text: str) -> None:
    """Progress, for the one who waits."""
    print(f"==> {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
