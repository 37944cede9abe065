"""The credentials of [kafka.client]: files, contradictions, what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError

PLAIN = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "ann",
}


def loaded(client: dict[str, Any]) -> Settings:
    return load(None, {"timer": {"topics": "a"}, "kafka": {"client": client}})


def test_a_secret_comes_from_its_file_without_the_end_of_the_line(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2 \r\n")
    settings = loaded({**PLAIN, "sasl_plain_password_file": str(file)})
    for kind in ("admin", "consumer", "producer"):
        options = settings.kafka.client_options(kind)
        assert options["sasl_plain_password"] == "hunter2 "
        assert "sasl_plain_password_file" not in options
    shown = settings.redacted()["kafka"]["client"]
    assert shown["sasl_plain_password_file"] == str(file)
    assert "hunter2" not in json.dumps(settings.redacted())


@pytest.mark.parametrize(
    ("octets", "text"),
    [(None, "No such file"), (b"", "is empty"), (b"\n", "is empty"), (b"\xffx", "no text in UTF")],
)
def test_a_file_without_a_secret_is_named(tmp_path: Path, octets: bytes | None, text: str) -> None:
    file = tmp_path / "password"
    if octets is not None:
        file.write_bytes(octets)
    settings = loaded({**PLAIN, "sasl_plain_password_file": str(file)})
    with pytest.raises(ConfigError, match=r"kafka\.client\.sasl_plain_password_file: ") as caught:
        settings.kafka.client_options("consumer")
    assert text in str(caught.value)


def test_config_check_reads_the_files(tmp_path: Path) -> None:
    config = tmp_path / "duewheel.toml"
    config.write_text(
        '[timer]\ntopics = ["a"]\n[kafka.client]\nsecurity_protocol = "SSL"\n'
        f'ssl_cafile = "{tmp_path / "ca.pem"}"\n'
    )
    line = ["config", "check", "--config", str(config)]
    refused = CliRunner().invoke(cli, line)
    assert isinstance(refused.exception, ConfigError)
    text = f"kafka.client.ssl_cafile: {tmp_path / 'ca.pem'} cannot be read: No such file"
    assert text in str(refused.exception)
    (tmp_path / "ca.pem").write_text("")
    assert CliRunner().invoke(cli, line).exit_code == 0
    line += ["--set", f"timer.topic.a.suite={tmp_path / 'a.json'}"]
    refused = CliRunner().invoke(cli, line)
    assert f"{tmp_path / 'a.json'} cannot be used: No such file" in str(refused.exception)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({"security_protocol": "TLS"}, 'security_protocol: "TLS" is none of PLAINTEXT, SSL'),
        ({"security_protocol": "SASL_SSL"}, 'security_protocol: "SASL_SSL" needs sasl_mechanism'),
        (PLAIN, 'sasl_mechanism: "PLAIN" needs sasl_plain_password, too'),
        (
            {"sasl_mechanism": "PLAIN"},
            'sasl_mechanism: has no effect with security_protocol "PLAINTEXT": set SASL_SSL',
        ),
        ({"ssl_crlfile": "revoked.pem"}, "ssl_crlfile: does not work with this kafka-python"),
        (
            {**PLAIN, "sasl_plain_password": "x", "sasl_plain_password_file": "y"},
            "sasl_plain_password_file: gives the same as sasl_plain_password: leave one",
        ),
        (
            {**PLAIN, "sasl_mechanism": "OAUTHBEARER"},
            'sasl_mechanism: "OAUTHBEARER" needs sasl_oauth_token_provider, too',
        ),
        (
            {"sasl_oauth_token_provider": "tokens.py"},
            'sasl_oauth_token_provider: "tokens.py" is no function: write "module:function"',
        ),
        (
            {"sasl_plain_pasword_file": "x"},
            "sasl_plain_pasword_file: not an option of all of kafka-python's clients; did you mean",
        ),
    ],
)
def test_what_cannot_work_is_refused(client: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(client)
    assert f"kafka.client.{expected}" in str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("secret", ["sasl_plain_password", "sasl_plain_password_file"])
def test_what_can_work_is_taken(mechanism: str, secret: str) -> None:
    loaded({**PLAIN, "sasl_mechanism": mechanism, secret: "x"})
    loaded({"security_protocol": "SSL", "ssl_certfile": "a", "ssl_keyfile": "b"})
    loaded({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"})
