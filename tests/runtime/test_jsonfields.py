"""JSON texts are read strictly: what two readers could take differently is refused."""

from __future__ import annotations

import pytest

from tilestitch.runtime.jsonfields import parse_json


def test_what_json_knows_is_read() -> None:
    text = '{"a": [1, -2.5, 1e3, true, null, "\\ud83d\\ude00 \\u00e9 ü"], "b": {"a": {}}}'
    expected = {"a": [1, -2.5, 1000.0, True, None, "😀 é ü"], "b": {"a": {}}}
    assert parse_json(text) == parse_json(text.encode()) == parse_json(memoryview(text.encode())) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Expecting value"),
        (b"{} {}", "Extra data"),
        (b'{"a": 1, "b": {"c": 1, "d": 2, "c": 1}}', "the name 'c' twice"),
        (b"[NaN]", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"[1e999]", "1e999 is no number"),
        (b'["\xff"]', "utf-8"),
        (b'["\\ud800"]', "surrogates"),
        (b'{"\\uDFFF": 1}', "surrogates"),
        ("[1]".encode("utf-16"), "utf-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "digits"),
    ],
)
def test_everything_else_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)
