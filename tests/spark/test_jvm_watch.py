"""The bridge to Java is quiet when it is known that Java is about to end, and not before."""

import subprocess
import sys

import pytest

CALL = """
import logging
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JNetworkError

class Cut:
    socket = None
    def send_command(self, command):
        raise Py4JNetworkError("cut")
    def close(self, reset=False):
        pass

class Client(GatewayClient):
    def _get_connection(self):
        return Cut()

if {hushed}:
    from ensue.spark.jvm_watch import hush_py4j
    hush_py4j()
Client().send_command("anything")
logging.getLogger("py4j.clientserver").error("of its own")
logging.error("somebody else's")
"""


@pytest.mark.parametrize("hushed", [False, True])
def test_the_bridge_fails_in_silence(*, hushed: bool) -> None:
    """In a process of its own: logging stays as it is set there."""
    command = [sys.executable, "-c", CALL.format(hushed=hushed)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert ("Exception while sending command" in said) is not hushed
    assert ("of its own" in said) is not hushed
    assert "somebody else's" in said
