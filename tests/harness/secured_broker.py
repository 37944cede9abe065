"""Broker settings for listeners of all kinds: without security, with passwords, with TLS, both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from duewheel.dev.broker import HOST

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def listener_properties(
    ports: Mapping[str, int],
    protocols: Mapping[str, str],
    controller_port: int,
    advertised: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Properties of a broker with these listeners.

    Args:
        ports: by the listener's name.
        protocols: Kafka's, such as SASL_SSL; by the listener's name.
        controller_port: of the listener among brokers.
        advertised: the ports that clients are told, where they differ.
    """
    told = {**ports, **(advertised or {})}
    protocols = {"CONTROLLER": "PLAINTEXT", **protocols}
    return {
        "listeners": _addresses({**ports, "CONTROLLER": controller_port}),
        "advertised.listeners": _addresses(told),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
    }


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


def keystore_properties(name: str, store: Path, password: str) -> dict[str, str]:
    """The certificate of a listener with TLS, from a PKCS12 file."""
    prefix = f"listener.name.{name.lower()}.ssl.keystore"
    return {
        f"{prefix}.type": "PKCS12",
        f"{prefix}.location": str(store),
        f"{prefix}.password": password,
    }


def password_properties(name: str, user: str, password: str) -> dict[str, str]:
    """The one user of a listener with SASL PLAIN."""
    prefix = f"listener.name.{name.lower()}"
    return {
        f"{prefix}.sasl.enabled.mechanisms": "PLAIN",
        f"{prefix}.plain.sasl.jaas.config": f'{_PLAIN} required user_{user}="{password}";',
    }
