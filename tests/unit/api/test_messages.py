"""Messages as results show them."""

from __future__ import annotations

from duewheel.api.messages import KEY_SHOWN_BYTES, key_in_list, octets_shown


def test_bytes_are_text_or_base64() -> None:
    assert octets_shown("key", "ü".encode()) == {"key": "ü"}
    assert octets_shown("key", b"\xff") == {"key_base64": "/w=="}
    assert octets_shown("key", None) == {"key": None}


def test_of_a_long_key_the_start_is_shown_in_whole_characters() -> None:
    assert key_in_list(None) == (None, None)
    assert key_in_list(b"a" * KEY_SHOWN_BYTES) == (b"a" * KEY_SHOWN_BYTES, None)
    assert key_in_list(b"a" * 5_000_000) == (b"a" * KEY_SHOWN_BYTES, 5_000_000)
    for before in range(4):
        shown, _ = key_in_list(b"a" * before + "𝄞".encode() * KEY_SHOWN_BYTES)
        assert shown is not None and KEY_SHOWN_BYTES - 4 < len(shown) <= KEY_SHOWN_BYTES
        assert shown.decode().endswith("𝄞")
    no_text = b"\xff" * (KEY_SHOWN_BYTES + 1)
    assert key_in_list(no_text) == (no_text[:KEY_SHOWN_BYTES], KEY_SHOWN_BYTES + 1)
