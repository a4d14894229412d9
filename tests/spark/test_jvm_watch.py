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
    from ensue.spark.jvm_watch import silence_py4j
    silence_py4j()
Client().send_command("anything")
logging.getLogger("py4j.clientserver").error("of its own")
logging.error("somebody else's")
"""


@pytest.mark.parametrize("hushed", [False, True])
def test_bridge_to_java_fails_silently(*, hushed: bool) -> None:
    """Run in another process, because it changes logging for good."""
    command = [sys.executable, "-c", CALL.format(hushed=hushed)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert ("Exception while sending command" in output) is not hushed
    assert ("of its own" in output) is not hushed
    assert "somebody else's" in output
