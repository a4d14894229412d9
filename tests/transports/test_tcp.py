"""`ensue://` does what every transport does."""

import socket

import pytest
from tests.transports.remote_suite import RemoteSuite
from tests.transports.stations import StationThread, tcp_station


def spare_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestTcp(RemoteSuite):
    @classmethod
    def make_station(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> StationThread:
        return tcp_station(tmp_path_factory.mktemp("station"), spare_port())
