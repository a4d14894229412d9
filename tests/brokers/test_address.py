import re
from urllib.parse import unquote

from hypothesis import example, given
from hypothesis import strategies as st

from ensue.transports.brokers.address import escape

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)


@given(NAMES)
@example("a=2Eb")
@example("a.b")
@example("%41")
def test_escaped_name_is_safe_and_can_be_decoded(name: str) -> None:
    escaped = escape(name)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", escaped)
    assert unquote(escaped.replace("=", "%"), errors="strict") == name
    assert len(escaped) <= 3 * len(name.encode())
