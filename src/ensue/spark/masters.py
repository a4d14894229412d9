"""Master URLs of Spark, checked before Spark takes seconds to start."""

import re
import socket

from ensue.core.errors import BadInput

__all__ = ["check_master"]

CONNECT_S = 5.0
"""Timeout for a connection to the master of a cluster."""

_FORMS = (
    re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?"),
    re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"),
    re.compile(r"yarn"),
    re.compile(r"k8s://\S+"),
)
_STANDALONE = re.compile(r"spark://(?P<places>[^\s/,]+:\d+(,[^\s/,]+:\d+)*)")


def check_master(master: str, name: str = "master") -> None:
    """Raise `BadInput` for an invalid master URL or a master that does not answer.

    Only standalone masters are contacted. `name` is the argument, option or variable that holds
    the URL.
    """
    if any(form.fullmatch(master) for form in _FORMS):
        return
    found = _STANDALONE.fullmatch(master)
    if found is None:
        raise BadInput(
            f"{name}: {master!r} is no master of Spark; expected local[4], local[*], "
            "spark://HOST:PORT, yarn or k8s://URL"
        )
    why = ""
    for place in found["places"].split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
                return
        except (OSError, OverflowError) as error:
            why = str(getattr(error, "strerror", None) or error)
    raise BadInput(
        f"{name}: no Spark master answers at {master} ({why}): start it, or name another"
    )
