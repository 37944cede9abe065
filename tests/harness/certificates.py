"""Certificates for brokers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

from duewheel.dev.broker import HOST
from duewheel.java.find import Java


def self_signed(java: Java, folder: Path, password: str) -> tuple[Path, Path]:
    """A key store for this host, and the certificate in it, which clients have to trust."""
    store, certificate = folder / "store.p12", folder / "certificate.pem"
    common = ["-alias", "broker", "-keystore", str(store), "-storepass", password]
    keytool = str(java.home / "bin" / "keytool")
    who = ["-keyalg", "EC", "-dname", "CN=broker", "-ext", f"SAN=ip:{HOST}"]
    for command in (["-genkeypair", *who], ["-exportcert", "-rfc", "-file", str(certificate)]):
        subprocess.run([keytool, *command, *common], check=True, capture_output=True)
    return store, certificate
