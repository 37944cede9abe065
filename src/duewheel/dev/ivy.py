"""Resolves Maven coordinates with the Ivy that ships inside pyspark, without a Spark session.

A JVM over pyspark's jars, driven by py4j, lives as long as the `with` block:

    with Ivy(java, scratch) as ivy:
        paths = ivy.resolve(["org.apache.kafka:kafka-clients:3.9.2"], transitive=False)

Jars come from the repository that Spark would use; its variable DEFAULT_ARTIFACT_REPOSITORY names
a mirror. Nothing is written outside `scratch`, and the JVM never outlives this process.
"""

from __future__ import annotations

import importlib.util
import logging
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from duewheel.errors import DuewheelError
from duewheel.java.find import Java

# Without the time-outs a silent server would hold the JVM for ever.
_JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-Dsun.net.client.defaultConnectTimeout=20000",
    "-Dsun.net.client.defaultReadTimeout=60000",
)

_COMPLAINTS_MAX = 8


def pyspark_jars() -> Path:
    """The folder of Spark's own jars, found without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "pyspark is a dependency"
    return Path(spec.origin).parent / "jars"


class Ivy:
    """Spark's Maven resolver. A context manager; `resolve` may be called from many threads."""

    def __init__(self, java: Java, scratch: Path) -> None:
        """Starts the JVM. The caller removes `scratch`, which has Ivy's files and the jars.

        Raises:
            DuewheelError: the JVM does not start.
        """
        self._scratch = scratch
        self._process: subprocess.Popen[bytes]
        try:
            port, token, self._process = launch_gateway(
                classpath=str(pyspark_jars() / "*"),
                javaopts=list(_JVM_OPTIONS),
                java_path=str(java.executable),
                die_on_exit=True,  # it ends when its stdin closes: also if this process is killed
                enable_auth=True,
                return_proc=True,
            )
        except (OSError, ValueError) as error:
            raise DuewheelError(f"{java.executable} does not start: {error}") from error
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        self._jvm = self._gateway.jvm
        # One log for all calls: Spark redirects the whole JVM's standard output to it while it
        # resolves, so concurrent calls cannot have a log each.
        self._log = self._jvm.java.io.ByteArrayOutputStream()
        self._stream = self._jvm.java.io.PrintStream(self._log)
        self._logger_level = logging.getLogger("py4j").level

    def __enter__(self) -> Self:
        # py4j logs a stack for each call that the JVM leaves unanswered; here each is an error.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        try:
            _trust(self._jvm, _certificates())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        logging.getLogger("py4j").setLevel(self._logger_level)

    def close(self) -> None:
        """Ends the JVM; running calls fail. May be called twice."""
        self._gateway.shutdown()  # or the proxies, when collected, would call a dead JVM
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def resolve(self, coordinates: Sequence[str], *, transitive: bool) -> list[Path]:
        """Fetches artifacts, each named group:artifact:version.

        Returns:
            scratch/ivy-*/jars/<group>_<artifact>-<version>.jar, one per artifact; Ivy's metadata is
            in scratch/ivy-*/cache.

        Raises:
            DuewheelError: something cannot be found or fetched.
        """
        # A folder per call: Ivy instances that share one get in each other's way.
        home = tempfile.mkdtemp(prefix="ivy-", dir=self._scratch)
        jvm, stream = self._jvm, self._stream
        try:
            maven = getattr(getattr(jvm.org.apache.spark.util, "MavenUtils$"), "MODULE$")
            none = jvm.scala.Option.empty()
            nothing = jvm.java.util.ArrayList()
            exclusions = jvm.scala.jdk.javaapi.CollectionConverters.asScala(nothing).toSeq()
            settings = maven.buildIvySettings(none, jvm.scala.Option.apply(home), False, stream)
            found = maven.resolveMavenCoordinates(
                ",".join(coordinates), settings, none, transitive, exclusions, False, stream
            )
            return [Path(found.apply(i)) for i in range(found.size())]
        except (Py4JError, OSError) as error:
            raise DuewheelError(
                f"cannot fetch {', '.join(coordinates)}: is the network there? "
                "DEFAULT_ARTIFACT_REPOSITORY names a mirror.\n"
                f"{self._complaints() or error}"
            ) from error

    def _complaints(self) -> str:
        """The error lines of Ivy's log."""
        try:
            lines = str(self._log.toString()).splitlines()
        except (Py4JError, OSError):  # the JVM is gone
            return ""
        wanted = ("error", "exception", "not found:", "timed out", "refused")
        complaints = dict.fromkeys(
            line.strip()
            for line in lines
            if any(word in line.lower() for word in wanted) and not line.startswith("::")
        )
        return "\n".join([*complaints][:_COMPLAINTS_MAX])


def _certificates() -> bytes:
    """The certificate authorities that this Python trusts, as PEM."""
    context = ssl.create_default_context()
    folder = ssl.get_default_verify_paths().capath
    # Python loads the files of a folder one by one when it needs them, and lists only those.
    for path in Path(folder).glob("*.[0-9]") if folder else ():
        with suppress(OSError):
            context.load_verify_locations(path)
    trusted = context.get_ca_certs(binary_form=True)
    return "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in trusted).encode()


def _trust(jvm: Any, certificates: bytes) -> None:
    """Makes the JVM trust further authorities beside its own: a JDK from a Python package does not
    know those that a company has added to this machine.
    """
    store = jvm.java.security.KeyStore.getInstance(jvm.java.security.KeyStore.getDefaultType())
    store.load(None, None)
    factory = jvm.javax.net.ssl.TrustManagerFactory.getInstance("PKIX")
    factory.init(None)
    own = factory.getTrustManagers()[0].getAcceptedIssuers()
    parser = jvm.java.security.cert.CertificateFactory.getInstance("X.509")
    ours = parser.generateCertificates(jvm.java.io.ByteArrayInputStream(certificates))
    for index, certificate in enumerate([*own, *ours]):
        store.setCertificateEntry(str(index), certificate)
    factory.init(store)
    context = jvm.javax.net.ssl.SSLContext.getInstance("TLS")
    context.init(None, factory.getTrustManagers(), None)
    jvm.javax.net.ssl.SSLContext.setDefault(context)
