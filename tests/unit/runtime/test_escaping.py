import json

from hypothesis import given
from hypothesis import strategies as st

from attendant.runtime.errors import escaped

# Each ends a line, or changes how the rest is shown: C0, DEL, C1 with NEL, both separators, directions, zero width.
HOSTILE = "\x00\t\n\r\x1b[2J\x7f\x80\x85\x9b\u00ad\u061c\u200b\u200e\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"


def test_what_is_not_printable_is_escaped() -> None:
    assert escaped("a\nb\x85c\u2028d\u202ee\U000e0001") == "a\\nb\\u0085c\\u2028d\\u202ee\\udb40\\udc01"
    assert escaped("Grüße, 你好 \\n") == "Grüße, 你好 \\n"


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_a_text_becomes_one_printable_line_of_the_same_words(text: str) -> None:
    assert escaped(text).isprintable()
    assert json.loads(escaped(json.dumps(text, ensure_ascii=False))) == text
