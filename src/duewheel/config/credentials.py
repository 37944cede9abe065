"""The credentials in [kafka.client]: their files, and mistakes for which a broker gives no reason.

All clients of Kafka take this table. An option with `_file` names a file with the secret, which is
read when a client is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from duewheel.config.values import Option, reveal
from duewheel.errors import Misconfigured

SECRET_FILES = {
    "sasl_plain_password_file": "sasl_plain_password",
    "ssl_password_file": "ssl_password",
}
"""The option of kafka-python for which each file has the value."""
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", *SECRET_FILES)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# The options without a default that a mechanism needs, in the table or in a file.
_NEEDED = {
    **dict.fromkeys(
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        ("sasl_plain_username", "sasl_plain_password"),
    ),
    "OAUTHBEARER": ("sasl_oauth_token_provider",),
}
_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+")


def credential_problems(client: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (option, reason) for each contradiction; reads no file."""
    options = {name: str(reveal(value)) for name, value in client.items()}
    for file, name in SECRET_FILES.items():
        if file in options and name in options:
            yield file, f"gives the same as {name}: leave one of them out"
    if "ssl_crlfile" in options:
        # 3.0.12 passes it to Python's ssl under a name that this does not have.
        yield "ssl_crlfile", "does not work with this kafka-python: leave it out"
    function = options.get("sasl_oauth_token_provider")
    if function is not None and not _FUNCTION.fullmatch(function):
        yield "sasl_oauth_token_provider", f'"{function}" is no function: write "module:function"'
    protocol = options.get("security_protocol", "PLAINTEXT")
    if protocol not in _PROTOCOLS:
        yield "security_protocol", f'"{protocol}" is none of {", ".join(_PROTOCOLS)}'
    else:
        yield from _mechanism_problems(options, protocol)


def _mechanism_problems(options: Mapping[str, str], protocol: str) -> Iterator[tuple[str, str]]:
    mechanism = options.get("sasl_mechanism")
    if not protocol.startswith("SASL_"):
        if mechanism is not None:
            yield (
                "sasl_mechanism",
                f'has no effect with security_protocol "{protocol}": set SASL_SSL there',
            )
        return
    if mechanism is None:
        yield "security_protocol", f'"{protocol}" needs sasl_mechanism, too'
        return
    for name in _NEEDED.get(mechanism, ()):
        if name not in options and f"{name}_file" not in options:
            yield "sasl_mechanism", f'"{mechanism}" needs {name}, too'


def in_clear(client: Mapping[str, Any]) -> dict[str, Option]:
    """The options for kafka-python, with the secrets of files.

    Raises:
        Misconfigured: a file cannot be read; names the option and the file.
    """
    options = {name: reveal(value) for name, value in client.items()}
    for name in _FILES:
        if name in options:
            # Files that kafka-python reads are tried, too: its error would not name the option.
            path = Path(str(options[name])).expanduser()
            if name in SECRET_FILES:
                del options[name]
                options[SECRET_FILES[name]] = secret_in(path, f"kafka.client.{name}")
            else:
                _read(path, f"kafka.client.{name}")
    return options


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"{key}: {path} cannot be read: {error.strerror}") from None


def secret_in(path: Path, key: str) -> str:
    """The text of a file without the line end that editors add.

    Raises:
        Misconfigured: there is none; names the key of the setting.
    """
    try:
        secret = _read(path, key).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        # The decoder's message would quote bytes of the secret.
        raise Misconfigured(f"{key}: the file's content is no text in UTF-8") from None
    if not secret:
        raise Misconfigured(f"{key}: the file is empty")
    return secret
