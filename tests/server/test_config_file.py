"""The configuration file of a server, and the errors about it."""

import re
import socket
from pathlib import Path

import pytest

from ensue.core.errors import BadInput, ConfigurationError
from ensue.server import ServerConfig, config_file
from ensue.server.config import Limits, Retention, Tls
from ensue.server.permissions import Access, User
from ensue.transports.tcp.messages import Member

ONE = '[[servers]]\nname = "a"\nlisten = "127.0.0.1:7400"\ndata = "d"\n'
TWO = ONE + '[[servers]]\nname = "b"\nlisten = "127.0.0.1:7401"\ndata = "e"\n'
HASH = f"sha256:{'ab' * 16}:{'0' * 64}"


def test_one_server_needs_three_lines(tmp_path: Path) -> None:
    (tmp_path / "ensue.toml").write_text(ONE)
    config = config_file.load(tmp_path / "ensue.toml")
    assert config == ServerConfig(name="a", listen="127.0.0.1:7400", data=str(tmp_path / "d"))
    assert config.sequencer.lease_ns == 10_000_000_000
    assert config.sequencer.lease_lost_ns == 1_000_000_000


def test_every_key_of_a_chain_is_read() -> None:
    text = (
        'closed = true\npublisher_order = false\nsync = "100ms"\nexpire = "2m"\n'
        'lease = "20s"\nlease_lost = "500ms"\n'
        'transaction_grace = "250ms"\nmailbox_expire = "30d"\n'
        + ONE.replace("data", 'topics = ["x", "y"]\naddress = "a.example:7400"\nsite = "Ulm"\ndata')
        + '[[servers]]\nname = "b"\nlisten = "127.0.0.1:7401"\ndata = "e"\ntopics = ["z"]\n'
        + '[retention]\nbytes = "10GB"\nage = "7d"\nsegment_bytes = "1MiB"\n'
        + "[limits]\nconnections = 7\nmailboxes_per_user = 5\n"
        + 'pending_bytes = "1MB"\nsilence = "90s"\n'
    )
    config = config_file.loads(text, name="a")
    assert config.chain == (
        Member("a", "a.example:7400", ("x", "y")),
        Member("b", "127.0.0.1:7401", ("z",)),
    )
    assert config.closed
    assert not config.sequencer.publisher_order
    assert config.sequencer.lease_ns == 20_000_000_000
    assert config.sequencer.lease_lost_ns == 500_000_000
    assert config.site == "Ulm"
    assert (config.sync_s, config.expire_s) == (0.1, 120.0)
    assert config.transaction_grace_s == 0.25
    assert config.retention.bytes == 10_000_000_000
    assert config.retention.age_s == 7 * 86_400.0
    assert config.retention.segment_bytes == 1024 * 1024
    assert config.mailbox_expire_s == 30 * 86_400.0
    assert config.limits == Limits(
        connections=7, mailboxes_per_user=5, pending_bytes=1_000_000, silence_s=90.0
    )
    assert config_file.loads(text, name="b").data == "e"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the key 'servers' is missing; add it"),
        ("servers = []", "servers is empty; add [[servers]]"),
        ("nonsense", "is not TOML"),
        (
            'lease = "2s"\nlease_lost = "3s"\n' + ONE,
            "lease_lost is 3 s, longer than the lease of 2 s",
        ),
        ('lease = "2h"\n' + ONE, "lease must be from 1 ms to 60 minutes, got 7200 s"),
        ('lease_lost = "0s"\n' + ONE, "lease_lost must be from 1 ms to 60 minutes, got 0 s"),
        (
            'transaction_grace = "1h"\n' + ONE,
            "transaction_grace must be from 1ms to 10m, got 3600 s",
        ),
        (
            'mailbox_expire = "1s"\n' + ONE,
            "mailbox_expire must be from 1m to 3650d, got 1 s; leave it out to keep mailboxes for",
        ),
        ("colsed = true\n" + ONE, "there is no key 'colsed' here; did you mean 'closed'?"),
        (
            ONE.replace("data", "dta"),
            "servers[0]: there is no key 'dta' here; did you mean 'data'?",
        ),
        (ONE.replace('data = "d"\n', ""), "servers[0]: the key 'data' is missing; add it"),
        (ONE.replace('"d"', "7"), "servers[0].data: expected text in quotes"),
        (ONE.replace("[[", "[").replace("]]", "]"), "servers: expected a list of tables"),
        ('sync = "often"\n' + ONE, 'sync: expected "always" or a duration such as "100ms"'),
        ("sync = 1\n" + ONE, 'sync: expected "always" or a duration such as "100ms"'),
        ('closed = "yes"\n' + ONE, "closed: expected true or false"),
        ("closed = true\n" + ONE, "closed: a closed chain needs topics"),
        (ONE + "[limits]\nconnections = 0", "limits.connections must be above 0"),
        (ONE + '[limits]\nsilence = "long"', "limits.silence: expected a duration like"),
        (ONE + "[limits]\nsilence = 5", "limits.silence: a duration needs a unit"),
        (ONE + '[limits]\npending_bytes = "x"', "limits.pending_bytes: expected a size in bytes"),
        (ONE + '[limits]\nmessage_bytes = "1GiB"', "limits.message_bytes must be at most"),
        (ONE + "[limits]\ntopic_length = 256", "limits.topic_length must be at most 255"),
        (ONE + "[limits]\nnames = 3", "limits: there is no key 'names' here"),
        (ONE + '[retention]\nage = "0s"', "retention.age_s must be above 0"),
        (ONE + '[tls]\ncert = "c"', "tls: the key 'key' is missing; add it"),
        (ONE + '[tls]\ncert = "c"\nkey = "k"\nclients = "some"', "tls.clients: there is no 'some'"),
        (ONE + '[tls]\ncert = "c"\nkey = "k"\nclients = "required"', "add tls.ca"),
        (ONE + "[users.al]\n", "users.al: a user needs a token or a certificate"),
        (ONE + '[users.al]\ntoken = "ensue_secret"', "users.al.token: expected sha256:SALT:HASH"),
        (
            ONE + f'[users.al]\ntoken = "{HASH}"\npublish = ["a*b"]',
            "users.al: 'a*b' is not a pattern",
        ),
        (
            ONE + f'[users.al]\ntoken = "{HASH}"\npublsh = ["a"]',
            "users.al: there is no key 'publsh'",
        ),
        (ONE + '[users.al]\ncertificate = "al"', "users.al.certificate has no effect"),
        (ONE + "[stations]\ncertificates = true", "stations.certificates has no effect"),
        (ONE + '[stations]\nsecret_file = "none"', "none: there is no such file"),
        (TWO.replace("7401", "7400"), "servers: two servers have the same listen"),
        (TWO.replace('"e"', '"d"'), "servers: two servers have the same data"),
        (TWO.replace('"b"', '"a"'), "the chain has two servers of one name, rename one: a, a"),
        (TWO.replace('"b"', '"b/c"'), "the name of a server must not contain '/'"),
        (TWO.replace("data", 'topics = ["x"]\ndata'), "topic 'x' is placed on a and on b"),
        (
            TWO + f'[users.al]\ntoken = "{HASH}"',
            "add stations.secret_file or stations.certificates",
        ),
        (ONE.replace("127.0.0.1:7400", "0.0.0.0:7400"), "beyond this machine, with no TLS"),
        (ONE.replace("127.0.0.1:7400", "127.0.0.1:x"), "the address to listen on"),
        (
            "insecure = true\n" + TWO.replace("127.0.0.1:7401", "0.0.0.0:7401"),
            "servers: b listens on all its addresses",
        ),
    ],
)
def test_error_names_the_file_the_key_and_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        config_file.loads(text, source="conf/ensue.toml", name="a")
    assert str(caught.value).startswith("conf/ensue.toml: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("retention", "piece_bytes"),
    [
        (Retention(), 64 * 2**20),
        (Retention(bytes=100 * 2**30), 64 * 2**20),
        (Retention(bytes=80 * 2**20), 10 * 2**20),
        (Retention(bytes=1_000), 64 * 2**10),
        (Retention(bytes=1_000, segment_bytes=100), 100),
    ],
)
def test_segment_is_a_small_part_of_the_retained_bytes(
    retention: Retention, piece_bytes: int
) -> None:
    assert retention.piece_bytes == piece_bytes


def test_server_of_this_machine_is_found_by_its_address() -> None:
    # Addresses for documentation, which no machine has.
    text = "insecure = true\n" + TWO.replace("127.0.0.1:7401", "203.0.113.7:7401")
    assert config_file.loads(text).name == "a"
    with pytest.raises(
        BadInput, match=r"the servers a, b, and .* address of a, b: choose one with --name"
    ):
        config_file.loads(TWO)
    with pytest.raises(BadInput, match="has the address of none of them"):
        config_file.loads(text.replace("127.0.0.1", "203.0.113.8"))
    with pytest.raises(BadInput, match="there is no server 'c'; expected one of a, b"):
        config_file.loads(TWO, name="c")


def test_station_secret_is_read_and_must_be_long(tmp_path: Path) -> None:
    text = TWO + '[stations]\nsecret_file = "secret"\n'
    (tmp_path / "secret").write_text("short\n")
    with pytest.raises(BadInput, match="has 5 characters; expected 32 or more"):
        config_file.loads(text, folder=tmp_path, name="a")
    (tmp_path / "secret").write_text("s" * 40 + "\n")
    config = config_file.loads(text, folder=tmp_path, name="a")
    assert config.access.station_secret == "s" * 40


TLS = Tls(cert="c", key="k", ca="ca", clients="required")
USERS = Access(users={"al": User(token=HASH)})


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:7400"])
def test_exposed_server_needs_tls_and_login_or_an_option(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: [])  # Every host is there.
    with pytest.raises(ConfigurationError, match=r"no TLS.* and with no login"):
        ServerConfig(data="d", listen=listen)
    with pytest.raises(ConfigurationError, match="with no TLS") as caught:
        ServerConfig(data="d", listen=listen, access=USERS)
    assert "no login" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="with no login"):
        ServerConfig(data="d", listen=listen, tls=Tls(cert="c", key="k"))
    ServerConfig(data="d", listen=listen, tls=Tls(cert="c", key="k"), access=USERS)
    ServerConfig(data="d", listen=listen, tls=TLS)
    ServerConfig(data="d", listen=listen, insecure=True)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.8.8:0", "[::1]:0", "localhost:0"])
def test_loopback_needs_no_option(listen: str) -> None:
    ServerConfig(data="d", listen=listen)


OPERATIONS = Path(__file__).parents[2] / "docs" / "how-to" / "operations.md"


def test_example_of_the_manual_is_valid(tmp_path: Path) -> None:
    (example,) = [
        block
        for block in re.findall(
            r"^```toml\n(.*?)^```", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL
        )
        if block.startswith("# ensue.toml")
    ]
    (tmp_path / "station.secret").write_text("s" * 43)
    for file in ("server.pem", "server.key", "ca.pem"):
        (tmp_path / file).touch()
    (tmp_path / "ensue.toml").write_text(example)
    for name in ("ulm-1", "ulm-2", "bonn-1"):
        config = config_file.load(tmp_path / "ensue.toml", name=name)
        assert config.name == name
        assert [member.name for member in config.chain] == ["ulm-1", "ulm-2", "bonn-1"]
        assert config.tls is not None
        assert config.requires_login


def test_every_key_is_in_the_manual() -> None:
    text = OPERATIONS.read_text()
    for key in config_file.keys():  # noqa: SIM118 - a module
        told = key.replace("servers.tls.", "tls.").replace("users.", "users.NAME.")
        assert f"`{told}`" in text, key


def test_manual_lists_the_limits_of_the_code() -> None:
    text = OPERATIONS.read_text()
    for name in Limits.__struct_fields__:
        value = getattr(Limits(), name)
        key = name.removesuffix("_s")
        row = next(line for line in text.splitlines() if line.startswith(f"| `limits.{key}` |"))
        told = row.split("|")[2].strip()
        if name.endswith("_s"):
            assert told == f"{value:g} s", row
        elif name.endswith("_bytes"):
            assert told == f"{value // 2**20} MiB", row
        else:
            assert told == f"{value:,}", row
