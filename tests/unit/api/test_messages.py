"""Messages as results show them."""

from __future__ import annotations

from duewheel.api.messages import KEY_SHOWN_BYTES, octets_shown, start_of


def test_bytes_are_text_or_base64() -> None:
    assert octets_shown("key", "ü".encode()) == {"key": "ü"}
    assert octets_shown("key", b"\xff") == {"key_base64": "/w=="}
    assert octets_shown("key", None) == {"key": None}


def test_of_a_long_key_the_start_is_shown_in_whole_characters() -> None:
    assert start_of(b"a" * KEY_SHOWN_BYTES) == b"a" * KEY_SHOWN_BYTES
    assert start_of(b"a" * 5_000_000) == b"a" * KEY_SHOWN_BYTES
    for before in range(4):
        shown = start_of(b"a" * before + "𝄞".encode() * KEY_SHOWN_BYTES)
        assert KEY_SHOWN_BYTES - 4 < len(shown) <= KEY_SHOWN_BYTES
        assert shown.decode().endswith("𝄞")
    no_text = b"\xff" * (KEY_SHOWN_BYTES + 1)
    assert start_of(no_text) == no_text[:KEY_SHOWN_BYTES]
