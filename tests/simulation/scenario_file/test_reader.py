"""Scenario files: how they are read, and how bad ones are rejected."""

import re
from pathlib import Path

import msgspec
import pytest

from ensue.core.errors import BadInput
from ensue.simulation.run import play
from ensue.simulation.scenario import Change, Publication, Rate, Reply, Scenario, Vanish
from ensue.simulation.scenario_file.reader import keys, load, loads
from ensue.simulation.scenario_file.tables import ContentTable, HypercubeTable, SequencerTable
from ensue.simulation.scenario_file.values import parse_duration
from ensue.simulation.world.delays import Constant, LogNormal, Normal, Uniform
from ensue.simulation.world.faults import ClockJump, Clog, Crash, Faults, Noise, Partition, Pause
from ensue.simulation.world.load_model import QueueConfig
from ensue.simulation.world.network import LinkDelay

MS = 1_000_000
SECOND = 1_000_000_000
PROJECT = Path(__file__).parents[3]
EXAMPLES = PROJECT / "examples" / "scenarios"
MANUAL = PROJECT / "docs" / "how-to" / "simulator.md"

CAST = """
[[chain]]
name = "node"
count = 2
site = ["north", "south"]
[[publishers]]
name = "p"
site = "north"
[[subscribers]]
name = "s"
count = 3
site = "south"
"""


def test_empty_file_is_default_scenario() -> None:
    assert loads("", name="empty") == Scenario(name="empty")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_valid(path: Path) -> None:
    scenario = load(path)
    assert scenario.name == path.stem
    outcome = play(scenario, 2)
    assert outcome.valid, outcome.sentences()


def test_names_times_and_sizes() -> None:
    scenario = loads('name = "n"\norder = "none"\nduration = "1m"\nsettle = "1.5s"')
    assert (scenario.name, scenario.order) == ("n", "none")
    assert (scenario.duration_ns, scenario.settle_ns) == (60 * SECOND, 1500 * MS)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("250ms", 250 * MS), ("2s", 2 * SECOND), ("1m", 60 * SECOND), ("10us", 10_000), ("0s", 0)],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "5", "s", "5 parsecs", "-1s", "1e3s"])
def test_bad_durations_are_rejected(text: str) -> None:
    with pytest.raises(BadInput, match="expected a duration"):
        parse_duration(text)


def test_count_makes_several_nodes_at_sites_in_turn() -> None:
    scenario = loads(CAST + '[[ens]]\nname = "ens"\ncount = 3\nsite = ["north", "south"]')
    assert [(one.name, one.site) for one in scenario.chain] == [
        ("node-1", "north"),
        ("node-2", "south"),
    ]
    assert [one.site for one in scenario.ens] == ["north", "south", "north"]
    assert [one.name for one in scenario.publishers] == ["p"]
    assert [one.name for one in scenario.subscribers] == ["s-1", "s-2", "s-3"]


def test_topics_are_assigned_to_nodes_in_rank_order() -> None:
    scenario = loads("""
        topics = ["a", "t1..t3", { name = "u", count = 2 }]
        [[chain]]
        name = "node"
        count = 2
        topics = ["a", "t1..t3", "u"]
        [[subscribers]]
        name = "s"
        topics = ["u", "t2..t3"]
    """)
    assert [one.topics for one in scenario.chain] == [("a", "t1", "t2"), ("t3", "u-1", "u-2")]
    assert scenario.subscribers[0].topics == ("u-1", "u-2", "t2", "t3")


def test_publishers_and_subscribers() -> None:
    scenario = loads("""
        [[publishers]]
        name = "p"
        events = [{ at = "1s", topics = ["a", "b"], size = "1kB" }]
        rates = [{ topics = "a", per_second = 2.5, from = "1s", until = "3s", size = 8 }]
        [[subscribers]]
        name = "s"
        topics = "a"
        changes = [{ at = "2s", subscribe = "b", unsubscribe = "a" }]
        replies = [{ on = "a", topic = "b", share = 0.5 }]
    """)
    (publisher,), (subscriber,) = scenario.publishers, scenario.subscribers
    assert publisher.events == (Publication(at_ns=SECOND, topics=("a", "b"), size=1000),)
    assert publisher.rates == (
        Rate(topics=("a",), per_second=2.5, from_ns=SECOND, until_ns=3 * SECOND, size=8),
    )
    assert subscriber.changes == (Change(at_ns=2 * SECOND, subscribe=("b",), unsubscribe=("a",)),)
    assert subscriber.replies == (Reply(on="a", topic="b", share=0.5),)


def test_sequencer_and_log_configurations_agree() -> None:
    scenario = loads('[sequencer]\nreliable = false\nlease = "2s"\nheld_max = 9')
    assert scenario.topic_log_config.keeps_log is False
    assert scenario.sequencer.leave_out is False
    assert (scenario.sequencer.lease_ns, scenario.sequencer.held_max) == (2 * SECOND, 9)
    assert loads("[sequencer]\nleave_out = false").topic_log_config.keeps_log is True


def test_groups_by_two_allow_changes() -> None:
    text = '[sequencer]\ngroups = 2\n[[subscribers]]\nname = "s"\ntopics = ["a", "b"]\n'
    scenario = loads(text + 'changes = [{ at = "1s", subscribe = "c" }]')
    assert scenario.sequencer.groups == 2
    assert scenario.subscribers[0].changes[0].subscribe == ("c",)


def test_delays_of_every_kind() -> None:
    scenario = loads("""
        [network]
        default = "5ms"
        reordering_delay = { kind = "constant", delay = "1ms" }
        loss = 0.1
        duplication = 0.2
        reordering = 0.3
        fifo = true
        clogged_max = 7
        [disk]
        sync = { kind = "log_normal", mean = "2ms", std = "1ms" }
    """)
    network = scenario.network
    assert network.default == Constant(5 * MS)
    assert network.reordering_delay == Constant(MS)
    assert (network.loss, network.duplication, network.reordering) == (0.1, 0.2, 0.3)
    assert (network.fifo, network.clogged_max) == (True, 7)
    assert scenario.disk.sync == LogNormal(2 * MS, MS)


def test_delays_by_site_and_link() -> None:
    scenario = loads(
        CAST
        + """
        [network]
        within_site = "1ms"
        between_sites = { kind = "normal", mean = "9ms", std = "1ms" }
        [[network.sites]]
        source = "south"
        target = "north"
        delay = { kind = "uniform", low = "1ms", high = "2ms" }
        both_ways = false
        [[network.links]]
        source = "p"
        target = "node"
        delay = "3ms"
        """
    )
    sites = {(one.source, one.target): one.delay for one in scenario.network.sites}
    assert sites == {
        ("north", "north"): Constant(MS),
        ("south", "south"): Constant(MS),
        ("north", "south"): Normal(9 * MS, MS),
        ("south", "north"): Uniform(MS, 2 * MS),
    }
    pairs = [("node-1", "p"), ("node-2", "p"), ("p", "node-1"), ("p", "node-2")]
    links = [
        LinkDelay(source=one, target=other, delay=Constant(3 * MS), both_ways=False)
        for one, other in pairs
    ]
    assert sorted(scenario.network.links, key=lambda one: (one.source, one.target)) == links


def test_queueing() -> None:
    scenario = loads("""
        [queueing]
        service = "10us"
        service_by_frame = { Put = "20us" }
        service_per_kilobyte = "500ns"
        bandwidth = "8Mbit/s"
        frames_max = 5
        sends_max = 6
    """)
    assert scenario.queueing == QueueConfig(
        service_ns=10_000,
        service_ns_by_frame={"Put": 20_000},
        service_ns_per_byte=0.5,
        bandwidth_bytes_per_s=1_000_000,
        frames_max=5,
        sends_max=6,
    )
    assert loads("").queueing is None


def test_every_fault() -> None:
    scenario = loads(
        CAST
        + """
        [clocks]
        node = { skew = "-1s", drift_ppm = 20 }
        [[faults.crash]]
        node = "s-1..s-2"
        at = "1s"
        restart_after = "2s"
        [[faults.pause]]
        node = "p"
        from = "1s"
        [[faults.partition]]
        side = "north"
        other = "s-3"
        until = "1s"
        one_way = true
        [[faults.clog]]
        targets = "p"
        [[faults.noise]]
        sources = "p"
        loss = 1
        [[faults.clock_jump]]
        node = "p"
        at = "1s"
        by = "-5s"
        monotone = false
        [[faults.vanish]]
        publisher = "p"
        at = "9s"
        """
    )
    assert {name: clock.skew_ns for name, clock in scenario.clocks.items()} == {
        "node-1": -SECOND,
        "node-2": -SECOND,
    }
    assert scenario.faults == Faults(
        crashes=tuple(
            Crash(node=node, at_ns=SECOND, restart_after_ns=2 * SECOND) for node in ("s-1", "s-2")
        ),
        pauses=(Pause(node="p", from_ns=SECOND),),
        partitions=(
            Partition(side=("node-1", "p"), other=("s-3",), until_ns=SECOND, one_way=True),
        ),
        clogs=(Clog(targets=("p",)),),
        noises=(Noise(sources=("p",), loss=1.0),),
        clock_jumps=(ClockJump(node="p", at_ns=SECOND, by_ns=-5 * SECOND, monotone=False),),
    )
    assert scenario.vanish == (Vanish(publisher="p", at_ns=9 * SECOND),)


REFUSED = [
    ('duratoin = "1s"', "there is no key 'duratoin' here; did you mean 'duration'?"),
    ("zzz = 1", "there is no key 'zzz' here; expected one of name, order, duration"),
    ("duration = 5", 'duration: a duration needs a unit: write "5ms" or "5s"'),
    ("duration = true", 'duration: expected a duration like "250ms"'),
    ('order = "totl"', "order: there is no order 'totl'; did you mean 'total'?"),
    ("x =", "is not TOML: Invalid value"),
    (
        '[[subscribers]]\nname="a"\n[[subscribers]]\nname="b"\nchanges=[{at="3x",subscribe="t"}]',
        'subscribers[1].changes[0].at: expected a duration like "250ms"',
    ),
    (
        '[[subscribers]]\nname="b"\nchanges=[{at="3s"}]',
        "subscribers[0].changes[0]: changes nothing; name topics",
    ),
    ('[subscribers]\nname="a"', "subscribers: expected a list of tables; write [[subscribers]]"),
    ("[[network]]", "network: expected one table; write [network]"),
    ("[network]\nloss = 2", "network.loss: expected a chance from 0 to 1"),
    ('[network]\ndefault = {kind="unform"}', "network.default.kind: there is no 'unform' here"),
    (
        '[network]\ndefault = {kind="uniform", low="2s", high="1s"}',
        "network.default: high must not be below low",
    ),
    (
        '[network]\ndefault = {kind="normal", mean="2s"}',
        "network.default: the key 'std' is missing; add it",
    ),
    (
        '[network]\ndefault = {kind="normal", mean=2, std="1s"}',
        "network.default.mean: a duration needs a unit",
    ),
    ('[network]\nwithin_site = "1ms"', "network.within_site: no node has a site"),
    ('[clocks]\nens={skew="1s"}\nnode-1={skw=1}', "clocks.node-1: there is no key 'skw' here"),
    ('[clocks]\nens={skew="1s"}\nnode-1={skew=1}', "clocks.node-1.skew: a duration needs a unit"),
    (
        '[[faults.crash]]\nnode="nod-1"\nat="1s"',
        "faults.crash[0].node: there is no node, group or site 'nod-1'; did you mean 'node-1'?",
    ),
    (
        '[[faults.crash]]\nnode="node-1"\nat="11s"',
        "faults.crash[0].at: comes after the scenario's duration (10s)",
    ),
    (
        '[[faults.pause]]\nnode="ens"\nfrom="2s"\nuntil="1s"',
        "faults.pause[0].until: must come after `from`",
    ),
    (
        'sites=["a"]\n[[faults.clog]]\nsources="a"',
        "faults.clog[0].sources: no node is at 'a'; name a node or another site",
    ),
    (
        'order="none"\n[[faults.crash]]\nnode="node-1"\nat="1s"',
        'faults.crash[0].node: with order = "none" there is no chain',
    ),
    (
        '[[faults.vanish]]\npublisher="ens"\nat="1s"',
        "faults.vanish[0].publisher: there is no publisher 'ens'",
    ),
    ('[[faults.clock_jump]]\nnode="ens"\nat="1s"\nby="0s"', "faults.clock_jump[0]: by must not"),
    ('[[faults.partition]]\nside="ens"\nother="ens"', "faults.partition[0]: other must not repeat"),
    (
        'topics=["orders"]\n[[subscribers]]\nname="a"\ntopics="order"',
        "subscribers[0].topics: there is no topic 'order'; did you mean 'orders'?",
    ),
    ('topics=["t1..u4"]', 'topics[0]: "t1..u4" is no pattern'),
    ('[[subscribers]]\nname="a"\ntopics="t9..t1"', 'subscribers[0].topics: "t9..t1" must rise'),
    ('[[subscribers]]\nname="a"\ntopics=["t","t"]', "subscribers[0].topics: named more than once"),
    (
        'sites=["a"]\n[[publishers]]\nname="p"\nsite="b"',
        "publishers[0].site: there is no site 'b'; there are: a",
    ),
    ('[[publishers]]\nname="ens"', "publishers[0].name: 'ens' is taken"),
    ('[[publishers]]\nname="p"\ncount=0', "publishers[0].count: must be from 1 to 10000, got 0"),
    (
        '[[publishers]]\nname="p"\nrates=[{topics="a",per_second=0}]',
        "publishers[0].rates[0]: a rate needs topics, and per_second above 0",
    ),
    (
        '[[publishers]]\nname="p"\nrates=[{topics="a",per_second="9"}]',
        "publishers[0].rates[0].per_second: expected a number, got text in quotes",
    ),
    (
        '[[publishers]]\nname="p"\nrates=[{topics="a",per_second=1e9}]',
        "publishers[0].rates: ask for 10000000000 events",
    ),
    (
        '[[publishers]]\nname="p"\nevents=[{at="1s",topics="x",size="1GB"}]',
        "publishers[0].events[0].size: must be at most",
    ),
    (
        '[[publishers]]\nname="p"\nevents=[{at="1s",topics="x",size="1 barrel"}]',
        "publishers[0].events[0].size: expected a size in bytes",
    ),
    (
        '[[chain]]\nname="a"\ntopics="x"\n[[chain]]\nname="b"\ntopics="x"',
        "chain[1].topics: 'x' is placed twice",
    ),
    ("chain = []", "chain: needs at least 1 node"),
    ("[sequencer]\ngroups = 3", "sequencer: groups must be 1 or 2"),
    ('[sequencer]\nlease = "0s"', "sequencer: lease must be at least 1"),
    ("[sequencer]\nreliable = false\nleave_out = true", "sequencer: leave_out needs a reliable"),
    (
        '[queueing]\nservice_by_frame = {Put="1us", Notfy="1us"}',
        "queueing.service_by_frame.Notfy: there is no frame 'Notfy'; did you mean 'Notify'?",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_error_names_file_and_place(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        loads(text, source="day.toml")
    assert str(refused.value).startswith(f"day.toml: {message}")
    assert "\n" not in str(refused.value)


def rows_of(manual: str) -> dict[str, list[str]]:
    """Return the keys in the tables of the manual, by heading."""
    told: dict[str, list[str]] = {}
    heading = ""
    for line in manual.splitlines():
        if line.startswith("#"):
            heading = line
        elif line.startswith("| `"):
            told.setdefault(heading, []).append(line.split("|")[1].strip().strip("`"))
    return told


PLACES = {
    "": "### The top of the file",
    "chain": "### Who takes part",
    "ens": "### Who takes part",
    "publishers": "### Who takes part",
    "subscribers": "### Who takes part",
    "brokers": "### Transactions",
    "clients": "### Transactions",
    "transactions": "### Transactions",
    "sequencer": "### `[sequencer]`: how the chain orders",
    "hypercube": "### `[hypercube]`: how the nodes of a cube order",
    "deadline": "### `[deadline]`: how brokers and subscribers are on time",
    "merge": "### `[merge]`: how clocks order",
    "link": "### `[link]`: the numbered links between chain nodes",
    "network": "### `[network]`",
    "network.sites": "### `[network]`",
    "network.links": "### `[network]`",
    "queueing": "### `[queueing]`: load",
    "clocks": "### `[clocks]`",
}
"""Tables by the heading that documents their keys; other tables have keys with full names."""
WHOLE = ("faults", "ens_log", "disk", "content")
"""Tables that the manual documents in prose, their keys with full names."""


def test_manual_has_the_defaults_of_content_brokers() -> None:
    manual = MANUAL.read_text(encoding="utf-8")
    for name, value in msgspec.structs.asdict(ContentTable()).items():
        (line,) = [line for line in manual.splitlines() if line.startswith(f"| `content.{name}` |")]
        stated = line.split("|")[3].strip().strip('`"')
        assert (parse_duration(stated) if stated[-1] in "sm" else int(stated)) == value, name


def test_manual_documents_every_key() -> None:
    manual = MANUAL.read_text(encoding="utf-8")
    rows = rows_of(manual)
    everywhere = {key for keys_told in rows.values() for key in keys_told}
    for key in keys():
        table, _, name = key.rpartition(".")
        if table in ("delay", "topics") or key in PLACES or key in WHOLE:
            # Documented in prose: a table, or the few keys of a delay or of topics.
            assert f"`{name}`" in manual or f"[{key}]" in manual or f"`{key}." in manual, key
        elif table in PLACES:
            shared = ["name", "count", "site"]  # Of all participants.
            assert name in [*rows[PLACES[table]], *shared], key
        else:
            # The manual shortens publishers.events.at to events.at.
            assert {key, key.partition(".")[2]} & everywhere, key


def test_defaults_in_manual_match_code() -> None:
    manual = MANUAL.read_text(encoding="utf-8")
    for name, value in msgspec.structs.asdict(SequencerTable()).items():
        if name in ("groups", "leave_out"):
            continue
        (line,) = [line for line in manual.splitlines() if line.startswith(f"| `{name}` |")][:1]
        told = line.split("|")[3].strip().strip('`"')
        if told in ("true", "false"):
            assert value is (told == "true"), name
        else:
            assert (parse_duration(told) if told[-1] == "s" else int(told)) == value, name


def test_cube_defaults_in_manual_match_code() -> None:
    manual = MANUAL.read_text(encoding="utf-8")
    section = manual.partition(PLACES["hypercube"])[2].partition("###")[0]
    told = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| `?\"?([\w.]+)\"?`? \|", section, re.MULTILINE))
    for name, value in msgspec.structs.asdict(HypercubeTable()).items():
        said = told.pop(name)
        if said in ("true", "false"):
            assert value is (said == "true"), name
        else:
            assert (parse_duration(said) if said[-1] == "s" else int(said)) == value, name
    assert not told


def test_every_scenario_in_manual_runs() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        assert play(loads(block), 1).valid


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(BadInput, match="can't be read"):
        load(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="is not UTF-8 text"):
        load(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("order", "bounds", "behind"),
    [
        ("deadline", '[deadline]\nskew = "10ms"', {"cam": "-5ms"}),
        ("deadline", '[deadline]\nskew = "10ms"', {"view-1": "-5ms"}),
        ("merged", '[merge]\nepsilon = "10ms"\ndelta = "50ms"', {"cam": "-5s", "view": "-5s"}),
    ],
)
def test_clocks_behind_zero_work_in_orders_that_send_readings(
    order: str, bounds: str, behind: dict[str, str]
) -> None:
    clocks = "\n".join(f'{node} = {{ skew = "{skew}" }}' for node, skew in behind.items())
    scenario = loads(f"""
        order = "{order}"
        duration = "1s"
        [[publishers]]
        name = "cam"
        rates = [{{ topics = "m", per_second = 25 }}]
        [[subscribers]]
        name = "view"
        count = 2
        topics = "m"
        {bounds}
        [clocks]
        {clocks}
    """)
    outcome = play(scenario, 1, encode=True)
    assert outcome.valid, outcome.sentences()
    assert outcome.delivered > outcome.published > 0
    assert all(row.at_ns >= 0 for row in outcome.rows)


def test_clocks_start_late_enough_to_never_go_below_zero() -> None:
    text = (
        CAST
        + """
        [clocks]
        p = { skew = "-5ms" }
        s = { skew = "2ms" }
        [[faults.clock_jump]]
        node = "s-1"
        at = "1s"
        by = "-20ms"
    """
    )
    scenario = loads(text)
    assert scenario.clock_base_ns == 18_000_000
