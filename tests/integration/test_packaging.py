"""The built package: one top-level name, the four linked folders as files, the data files. Alone
on its path, with no other library than it asks for, the client sends, and commands work or name
the extra that they need.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.harness.built_package import FILES, LINKED, ROOT, Site, build, copy_sources, names_in
from tests.harness.reader import everything_in
from tests.harness.shared_broker import SharedBroker

from duewheel.extras import COMMANDS, LIBRARIES
from duewheel.kafka.ledger.producer_internals import SUPPORTED_VERSION
from duewheel.kafka.topics.admin import KafkaAdmin

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

SEND = """
import json, sys
from duewheel.client import DelayProducer

servers, topic = sys.argv[1:]
with DelayProducer(topic, bootstrap_servers=servers) as producer:
    future = producer.schedule("orders", b"pay", key=b"order-42", delay="15m", id="reminder")
    timer = future.result(timeout=30)
loaded = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps({"offset": timer.offset, "loaded": sorted(loaded - {"__main__"})}))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("built") / "source")


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    run = build(sources, sources.parent)
    assert run.returncode == 0, run.stderr
    return next(sources.parent.glob("duewheel-*.whl"))


@pytest.fixture(scope="module")
def client(wheel: Path) -> Site:
    return Site(wheel.with_name("client"), wheel)


@pytest.fixture(scope="module")
def dequeue(wheel: Path) -> Site:
    return Site(wheel.with_name("dequeue"), wheel, "dequeue")


def test_built_package_is_whole(wheel: Path) -> None:
    names = names_in(wheel)
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "duewheel",
        "pyspark_duewheel",  # by its name Spark finds the data source
    }
    for folder in LINKED:
        here = {
            f"duewheel/{path.relative_to(ROOT)}"
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".json"}
        }
        assert here <= names
    top = ROOT / "src" / "duewheel"
    shell = {str(path.relative_to(top)) for path in top.rglob("*") if path.suffix}
    data = {"py.typed", "dev/jars.json", "dev/broker.properties"}
    assert {"client/__init__.py", *data} <= shell
    assert {f"duewheel/{name}" for name in shell if not name.endswith(".pyc")} <= names
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)


def test_a_package_built_from_the_source_archive_is_the_same(sources: Path, wheel: Path) -> None:
    to = sources.parent / "from-archive"
    to.mkdir()
    assert build(sources, to, kind="sdist").returncode == 0
    (archive,) = to.glob("duewheel-*.tar.gz")
    shutil.unpack_archive(archive, to, filter="data")
    (unpacked,) = (path for path in to.iterdir() if path.is_dir())
    assert set(FILES) <= {path.name for path in unpacked.iterdir()}
    for folder in ("deploy", "docs"):
        assert {path.name for path in (ROOT / folder).iterdir()} <= {
            path.name for path in (unpacked / folder).iterdir()
        }
    assert build(unpacked, to).returncode == 0
    assert names_in(next(to.glob("*.whl"))) == names_in(wheel)


def test_a_tree_without_its_links_is_not_built(sources: Path, tmp_path: Path) -> None:
    # What git leaves in place of a link where links cannot be made.
    broken = shutil.copytree(sources, tmp_path / "broken", symlinks=True)
    link = broken / "src" / "duewheel" / "wheel"
    target = link.readlink()
    link.unlink()
    link.write_text(str(target))
    run = build(broken, tmp_path)
    assert run.returncode != 0
    assert "src/duewheel/wheel is no folder" in run.stdout + run.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_the_description_has_no_link_that_leads_nowhere(client: Site) -> None:
    code = "import importlib.metadata as m; print(m.metadata('duewheel'))"
    metadata = message_from_string(client.python("-c", code).stdout)
    text = metadata.get_payload()
    assert isinstance(text, str) and "docs/" not in "".join(re.findall(r"\]\(([^)]*)\)", text))
    assert len(metadata.get_all("Classifier", [])) > 8
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_each_extra_is_known_by_the_modules_that_it_brings() -> None:
    """A command whose library is missing names the extra by these modules."""
    modules: dict[str, set[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for name in distributions:
            modules.setdefault(name.lower().replace("_", "-"), set()).add(module)
    base = {Requirement(text).name for text in PROJECT["dependencies"]}
    for extra, libraries in LIBRARIES.items():
        names = {Requirement(t).name for t in PROJECT["optional-dependencies"][extra]}
        for name in names - base - {"duewheel"}:
            assert modules[name] & libraries, f"{extra}: {name}"
    assert f"kafka-python=={SUPPORTED_VERSION}" in PROJECT["optional-dependencies"]["dequeue"]


@pytest.mark.kafka
def test_the_client_alone_sends_a_timer(
    client: Site, broker: SharedBroker, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("timers")
    with KafkaAdmin({"bootstrap_servers": broker.bootstrap_servers}) as admin:
        admin.create_topic(topic, 1)
    run = client.python("-c", SEND, broker.bootstrap_servers, topic)
    assert run.returncode == 0, run.stderr
    sent = json.loads(run.stdout)
    assert set(sent["loaded"]) == {"duewheel", "kafka", "google_crc32c"}
    (record,) = everything_in(broker.bootstrap_servers, topic, 1)
    assert (record.offset, record.key, record.value) == (sent["offset"], b"order-42", b"pay")
    assert dict(record.headers) == {
        "REAL_TOPIC": b"orders",
        "TIMER_DELAY_MS": b"900000",
        "UNIQ_KEY": b"reminder",
    }


def test_beside_the_client_alone_commands_name_the_extra(client: Site) -> None:
    version = client.python("-m", "duewheel", "--version")
    assert version.stdout == f"duewheel, version {PROJECT['version']}\n"
    libraries = {name for names in LIBRARIES.values() for name in names}
    for command, extra in {**COMMANDS, "list": "dequeue", "dequeue": "dequeue"}.items():
        run = client.python("-m", "duewheel", *command.split())
        assert run.returncode == 2
        (line,) = run.stderr.splitlines()
        assert f"pip install 'duewheel[{extra}]'" in line
        named = set(re.findall(r"\w+", line.partition("[")[0]))
        assert not libraries & named, "it names no library"


def test_the_help_of_the_client_alone_says_what_it_is(client: Site) -> None:
    texts = set()
    for words in ((), ("--help",), ("-h",)):
        run = client.python("-m", "duewheel", *words)
        assert (run.returncode, run.stderr) == (0 if words else 2, ""), words
        texts.add(run.stdout)
    (text,) = texts
    assert "from duewheel.client import DelayProducer\n" in text
    for extra in {*COMMANDS.values(), "dequeue"}:
        assert f"pip install 'duewheel[{extra}]'" in text
    for command in COMMANDS:
        assert re.search(rf"[ ]{command}\b", text), command


def test_without_spark_commands_work_or_name_the_extra(dequeue: Site) -> None:
    topics = ("--set", "timer.topics=a.delayed")
    for works in (("--help",), ("config", "check", *topics)):
        run = dequeue.python("-m", "duewheel", *works)
        assert run.returncode == 0, run.stderr
    for extra, *words in (
        ("service", "run", *topics),
        ("service", "ingest", *topics),
        ("service", "dev-broker", "run"),
        ("audit", "audit", *topics),
        ("serve", "serve", *topics),
    ):
        run = dequeue.python("-m", "duewheel", *words)
        assert run.returncode == 2, words
        (line,) = run.stderr.splitlines()
        assert line.endswith(f"pip install 'duewheel[{extra}]'"), line
    ops = "changes.reschedule_pending shard.status dead_letters.replay reshard"
    modules = [*(f"ops.{name}" for name in ops.split()), "doctor.examination"]
    code = "\n".join(f"import duewheel.{name}" for name in modules)
    run = dequeue.python("-c", f"{code}\nimport duewheel.runtime.dequeue_process")
    assert run.returncode == 0, run.stderr


A_TEST = """
def test_a_reminder(duewheel):
    duewheel.producer().schedule("orders", b"pay", key=b"42", delay="40d")
    duewheel.advance("40d")
    assert [message.value for message in duewheel.delivered("orders")] == [b"pay"]
"""


def test_pytest_finds_the_fixture_of_the_extra(wheel: Path, tmp_path: Path) -> None:
    site = Site(wheel.with_name("testing"), wheel, "testing")
    (tmp_path / "test_reminder.py").write_text(A_TEST)
    pytest_here = ("-m", "pytest", "--quiet", "-W", "error", "-p", "no:cacheprovider")
    run = site.python(*pytest_here, str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
    (wheel.with_name("testing") / "numpy").unlink()
    run = site.python(*pytest_here, str(tmp_path))
    assert "an extra is missing: pip install 'duewheel[testing]'" in run.stdout
    assert "1 error" in run.stdout
