"""A development broker's listener with TLS and passwords, and the files that its clients need.

In the broker's data directory:

    client.toml      [kafka] and [kafka.client] of duewheel; rewritten at every start
    login/           mode 0700; made as login.new, and renamed when complete
        password     the one user's, who is also the broker, and the key store's; mode 0600
        ca.pem       the broker's self-signed certificate, which clients have to trust
        broker.p12   the key store

The login is kept, so that a client that runs while the broker restarts can log in again.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from duewheel.dev.listeners import HOST
from duewheel.errors import DuewheelError
from duewheel.java.find import Java

_NAME = "SASL_SSL"  # the listener's name, from which Kafka derives its protocol
_USER = "duewheel"
_VALID_DAYS = 3650
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
# Not bin/keytool, which a trimmed runtime may lack.
_KEYTOOL = "java.base/sun.security.tools.keytool.Main"


@dataclass(frozen=True, slots=True)
class SaslSsl:
    """The login of one data directory."""

    folder: Path  # `login` in the data directory

    @classmethod
    def of(cls, data_dir: Path, java: Java) -> Self:
        """That directory's login, which is made if there is none.

        Raises:
            DuewheelError: Java cannot make a certificate.
        """
        folder, new = data_dir / "login", data_dir / "login.new"
        if not folder.exists():
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o700)
            password = secrets.token_urlsafe(24)
            write_secret(new / "password", password)
            self_signed(java, new, password)
            new.rename(folder)
        return cls(folder)

    @property
    def client_config(self) -> Path:
        """The file for clients."""
        return self.folder.with_name("client.toml")

    @property
    def client_options(self) -> dict[str, str]:
        """The table [kafka.client]."""
        return {
            "security_protocol": _NAME,
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": _USER,
            "sasl_plain_password_file": str(self.folder / "password"),
            "ssl_cafile": str(self.folder / "ca.pem"),
        }

    def broker_properties(self) -> dict[str, str]:
        """The listener's broker settings, password included."""
        password = (self.folder / "password").read_text()
        truststore = f"listener.name.{_NAME.lower()}.ssl.truststore"
        return {
            **keystore_properties(_NAME, self.folder / "broker.p12", password),
            **password_properties(_NAME, _USER, password),
            # The broker is its own client when it ends transactions.
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            f"{truststore}.type": "PEM",
            f"{truststore}.location": str(self.folder / "ca.pem"),
        }

    def write_client_config(self, bootstrap_servers: str) -> None:
        """Writes the part of a configuration file that reaches the broker."""
        rows = "".join(
            # JSON's texts are TOML's, except characters that JSON writes as two halves.
            f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in self.client_options.items()
        )
        servers = f"bootstrap_servers = {json.dumps(bootstrap_servers)}\n"
        self.client_config.write_text(f"[kafka]\n{servers}[kafka.client]\n{rows}", "utf-8")


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only this user may read, whatever its mode was."""
    path.touch(0o600)
    path.chmod(0o600)  # it may have been there
    path.write_text(text)


def self_signed(java: Java, folder: Path, password: str) -> tuple[Path, Path]:
    """Makes a key store for a broker on this host, and the certificate that clients have to trust.

    Raises:
        DuewheelError: has keytool's own words.
    """
    store, certificate = folder / "broker.p12", folder / "ca.pem"
    common = ["-alias", "broker", "-keystore", str(store), "-storepass:env", "STORE_PASSWORD"]
    who = ["-keyalg", "EC", "-dname", "CN=broker", "-ext", f"SAN=ip:{HOST}"]
    pair = ["-genkeypair", *who, "-validity", str(_VALID_DAYS)]
    for words in (pair, ["-exportcert", "-rfc", "-file", str(certificate)]):
        run = subprocess.run(
            [str(java.executable), "-m", _KEYTOOL, *words, *common],
            env={**os.environ, "STORE_PASSWORD": password},  # arguments are for all to see
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if run.returncode != 0:
            raise DuewheelError(f"no certificate in {folder}:\n{run.stdout}{run.stderr}")
    return store, certificate


def keystore_properties(name: str, store: Path, password: str) -> dict[str, str]:
    """Broker settings: the certificate of a listener with TLS, from a PKCS12 file."""
    prefix = f"listener.name.{name.lower()}.ssl.keystore"
    return {
        f"{prefix}.type": "PKCS12",
        f"{prefix}.location": str(store),
        f"{prefix}.password": password,
    }


def password_properties(name: str, user: str, password: str) -> dict[str, str]:
    """Broker settings: the one user of a listener with SASL PLAIN, who is also the broker."""
    prefix = f"listener.name.{name.lower()}"
    broker = f'username="{user}" password="{password}"'
    return {
        f"{prefix}.sasl.enabled.mechanisms": "PLAIN",
        f"{prefix}.plain.sasl.jaas.config": f'{_PLAIN} required {broker} user_{user}="{password}";',
    }
