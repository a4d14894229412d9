"""`ensue pub --where`, `ensue sub --where` and `ensue tx` against a server."""

import asyncio
import json
import re
import sys
import tomllib
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from tests.cli.helpers import Shell
from tests.server.helpers import read, serving, until, within

import ensue
from ensue.cli import pub
from ensue.cli.tx import read_plan
from ensue.server import Server
from ensue.server.config import sequenced

ENSUE = (sys.executable, "-c", "from ensue.cli import main; main()")
SYNC_S = 0.5


async def started(server: Server, *words: str) -> Process:
    url = ("--url", server.url)
    return await asyncio.create_subprocess_exec(
        *ENSUE, *words, *url, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def waited(process: Process, line: str) -> None:
    """Wait until a process has written a line to standard error."""
    assert process.stderr is not None
    assert (await within(process.stderr.readline())).decode() == f"{line}\n"


async def ended(process: Process, data: bytes = b"") -> tuple[int | None, str, str]:
    out, err = await within(process.communicate(data))
    return process.returncode, out.decode(), err.decode()


async def subscribed(server: Server, count: int) -> None:
    """Wait until the broker has `count` subscriptions."""
    assert server.content is not None
    broker = server.content
    await until(lambda: len(broker.broker.tables.subscriptions) == count, "they are subscribed")


def test_order_total_publishes_and_reads_in_total_order(tmp_path: Path) -> None:
    """Not by brokers: another subscription by content, without this order, gets nothing."""

    async def main() -> None:
        sequencer = sequenced(causal=True, cells="price<10<100")
        async with serving(tmp_path / "d", sync_s=SYNC_S, sequencer=sequencer) as server:
            total = ("--where", "price > 10", "--order", "total")
            plain = await started(server, "sub", *total, "-n", "2")
            await waited(plain, "ensue: subscribed to --where 'price > 10'")
            lines = b"".join(b'{"price": %d}\n' % price for price in (9, 11, 10, 12))
            words = ("--where", "price > 0", "--order", "total")
            pub = await started(server, "pub", *words)
            assert await ended(pub, lines) == (0, "", "")
            wanted = [{"price": 11}, {"price": 12}]
            code, out, _ = await ended(plain)
            assert (code, [json.loads(line) for line in out.splitlines()]) == (0, wanted)
            again = await started(
                server, "sub", *total, "-n", "1", "--from", "earliest", "--name", "billing"
            )
            assert (await ended(again))[:2] == (0, '{"price":11}\n')
            again = await started(server, "sub", *total, "-n", "1", "--name", "billing")
            assert (await ended(again))[:2] == (0, '{"price":12}\n')
            assert server.content is not None
            assert not server.content.broker.clients, "no broker has been used"
            pub = await started(server, "pub", "--where", "price > 10", "--order", "total")
            code, _, err = await ended(pub, b'{"price": 11}\n{"price": 1}\n')
            assert code == 2
            assert (
                "line 2: {'price': 1} does not match --where 'price > 10'; 1 was published" in err
            )

    asyncio.run(main())


def test_events_are_routed_by_content(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=SYNC_S) as server:
            plain = await started(server, "sub", "--where", "price > 10", "-n", "2")
            shown = await started(server, "sub", "--where", "note exists", "-n", "1", "--json")
            format_ = ("--format", r"{publisher}:{payload}\n")
            payloads = await started(
                server, "sub", "--where", "symbol = 'ACME'", "-n", "3", *format_
            )
            await subscribed(server, 3)
            lines = b"".join(
                b'{"symbol": "ACME", "price": %d}\n' % price for price in (9, 11, 10, 12)
            )
            pub = await started(server, "pub", "--where", "symbol = 'ACME'", "--name", "p")
            assert await ended(pub, lines) == (0, "", "")
            wanted = [{"price": 11, "symbol": "ACME"}, {"price": 12, "symbol": "ACME"}]
            code, out, _ = await ended(plain)
            assert (code, [json.loads(line) for line in out.splitlines()]) == (0, wanted)
            code, out, _ = await ended(payloads)
            assert code == 0
            assert [line.partition("~")[0] for line in out.splitlines()] == ["p"] * 3
            words = ("--json", "-m", '{"attributes": {"note": "x"}, "payload": {"a": 1}}')
            pub = await started(server, "pub", "--where", "note exists", *words)
            assert await ended(pub) == (0, "", "")
            code, out, _ = await ended(shown)
            row = json.loads(out)
            assert (row["attributes"], row["payload"], row["position"]) == (
                {"note": "x"}, '{"a":1}', 1,
            )  # fmt: skip

    asyncio.run(main())


def test_named_subscription_resumes_after_the_last_printed_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            ensue.connect(server.url, order=None, name="a") as a,
        ):
            await within(a.advertise(where="x exists"))
            words = ("sub", "--where", "x exists", "--name", "billing", "-n", "2")
            first = await started(server, *words)
            await subscribed(server, 1)
            for number in range(4):
                await within(a.publish({"x": number}))
            assert (await ended(first))[:2] == (0, '{"x":0}\n{"x":1}\n')
            again = await started(server, *words)
            assert (await ended(again))[:2] == (0, '{"x":2}\n{"x":3}\n')

    asyncio.run(main())


def test_pending_max_limits_waiting_events(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            ensue.connect(server.url, order=None, name="a") as a,
        ):
            await within(a.advertise(where="x exists"))
            small = await started(server, "sub", "--where", "x exists", "--pending-max", "2")
            large = await started(
                server, "sub", "--where", "x exists", "--pending-max", "3", "-n", "3"
            )
            await subscribed(server, 2)
            async with a.transaction(timeout=60) as tx:
                for number in range(3):
                    await tx.publish({"x": number})
            code, out, err = await ended(small)
            assert (code, out) == (2, "")
            assert "pending_max is 2" in err
            code, out, _ = await ended(large)
            assert (code, out) == (0, '{"x":0}\n{"x":1}\n{"x":2}\n')

    asyncio.run(main())


def test_error_names_the_line_that_can_not_be_published(tmp_path: Path) -> None:
    second = {
        b'{"x": ': "line 2: is not JSON",
        b'{"y": 1}': "line 2: no subscriber gets it: no advertisement of",
        b'{"x": [1]}': "line 2: x: expected true or false, a number or text in quotes",
        b"7": "line 2: expected an object in { }, got a whole number",
        b'{"x": 9223372036854775808}': "line 2: a whole number must be between",
    }

    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=SYNC_S) as server:
            for line, wrong in second.items():
                pub = await started(server, "pub", "--where", "x exists")
                code, out, err = await ended(pub, b'{"x": 1}\n%b\n{"x": 2}\n' % line)
                assert (code, out) == (2, "")
                assert wrong in err
                assert "1 was published before it" in err

    asyncio.run(main())


MOVE = """
[[operations]]
client = "one"
unsubscribe = "{old}"

[[operations]]
client = "two"
subscribe = "instance = 'x1'"

[[operations]]
advertise = "instance exists"

[[operations]]
publish = {{ instance = "x1", step = 1 }}
payload = "first"
together = true

[[operations]]
publish = {{ instance = "x1", step = 2 }}
payload = "second"
together = true
"""


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_plan_is_committed(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            ensue.connect(server.url, order=None, name="one") as one,
            ensue.connect(server.url, order=None, name="two") as two,
            one.subscribe(where="instance = 'x1'") as old,
        ):
            made: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            await within(two.on_subscription(made.put))
            file = tmp_path / f"move.{kind}"
            text = MOVE.format(old=one.content_name(old))
            if kind == "json":
                text = json.dumps(tomllib.loads(text))
            file.write_text(text)
            running = await started(server, "tx", str(file), "--timeout", "60", "--json")
            code, out, err = await ended(running)
            assert (code, err) == (0, "")
            assert json.loads(out)["outcome"] == "committed"
            events = await within(made.get())
            assert sorted(await read(events, 2)) == [b"first", b"second"]
            again = await started(server, "tx", str(file), "--timeout", "60")
            code, out, err = await ended(again)
            assert (code, out) == (2, ""), "the subscription is gone"
            assert "there is no " in err

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "outcome"), [(b"commit\n", "committed"), (b"abort\n", "aborted"), (b"", "aborted")]
)
def test_held_plan_ends_as_standard_input_says(tmp_path: Path, answer: bytes, outcome: str) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            ensue.connect(server.url, order=None, name="one") as one,
            one.subscribe(where="x exists") as events,
        ):
            file = tmp_path / "plan.toml"
            file.write_text(
                '[[operations]]\nadvertise = "x = 1"\n[[operations]]\npublish = { x = 1 }\n'
            )
            running = await started(server, "tx", str(file), "--timeout", "60", "--hold")
            assert running.stdout is not None
            held = (await within(running.stdout.readline())).decode()
            assert held.startswith("held ")
            assert held.endswith(": 2 operations; commit or abort?\n")
            assert not events.waiting
            code, out, err = await ended(running, answer)
            assert (code, err) == (0, "")
            assert out.startswith(f"{outcome} ")
            assert out.endswith(": 2 operations\n")
            if outcome == "committed":
                assert (await within(anext(events))).attributes == {"x": 1}
            assert not events.waiting

    asyncio.run(main())


def test_unclear_decision_about_a_held_plan_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=SYNC_S) as server:
            file = tmp_path / "plan.toml"
            file.write_text('[[operations]]\nadvertise = "x = 1"\n')
            running = await started(server, "tx", str(file), "--hold", "--json")
            code, out, _ = await ended(running, b"perhaps\n")
            assert code == 2
            assert "the decision must be commit or abort, got 'perhaps': aborted" in out

    asyncio.run(main())


def test_retries_of_a_plan_are_checked(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[operations]]\nadvertise = "x = 1"\n')
    for words, error in (
        (("--retries", "-1"), "retries must be a whole number from 0 to 1000, got -1"),
        (("--retries", "1", "--hold"), "give --hold or --retries, not both"),
    ):
        result = shell("tx", file, *words)
        assert result.code == 2
        assert error in result.stderr


def test_example_plans_can_be_read() -> None:
    files = sorted((Path(__file__).parents[2] / "examples" / "plans").iterdir())
    assert files
    for file in files:
        assert read_plan(file).operations


def test_one_operation_is_printed_in_the_singular(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=SYNC_S) as server:
            file = tmp_path / "plan.toml"
            file.write_text('[[operations]]\nadvertise = "x = 1"\n')
            code, out, err = await ended(await started(server, "tx", str(file), "--timeout", "60"))
            assert (code, err) == (0, "")
            assert out.endswith(": 1 operation\n")

    asyncio.run(main())


def test_rejected_plan_prints_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=SYNC_S) as server:
            file = tmp_path / "plan.toml"
            file.write_text('[[operations]]\nclient = "nobody"\nsubscribe = "x = 1"\n')
            code, out, err = await ended(await started(server, "tx", str(file)))
            assert (code, out) == (2, "")
            assert "no client is called 'nobody" in err

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", ": the key 'operations' is missing; add [[operations]], one for each operation"),
        (
            "[[operation]]\npublish = { x = 1 }",
            ": there is no key 'operation' here; did you mean 'operations'?",
        ),
        ("[operations]\npublish = { x = 1 }", "write [[operations]] with two brackets"),
        ("operations = []", "has no operations"),
        ("[[operations]]\npayload = 'x'", "operation 1: needs exactly one of publish, advertise"),
        (
            "[[operations]]\nadvertise = 'x = 1'\nsubscribe = 'x = 1'",
            "; got advertise and subscribe",
        ),
        ("[[operations]]\nsubscribe = 'x = 1'", "name the subscriber with client"),
        (
            "[[operations]]\nadvertise = 'x >'",
            "operation 1: expected a number or a text to compare with",
        ),
        ("[[operations]]\nadvertise = 'x = 1'\npayload = 'p'", "payload is for publish only"),
        (
            "[[operations]]\npublish = { x = 1, y = [1] }",
            (
                ", operation 1: publish.y: expected true or false, a number or text in quotes, "
                'such as "orders", got a list'
            ),
        ),
        (
            "[[operations]]\nsubscribes = 'x'",
            ", operation 1: there is no key 'subscribes' here; did you mean 'subscribe'?",
        ),
        (
            "[[operations]]\nfoo = 1",
            (
                "expected one of publish, advertise, unadvertise, subscribe, unsubscribe, payload, "
                "client, together"
            ),
        ),
        ("[[operations]]\npayload = 3", ", operation 1: payload: expected text in quotes"),
        ("[[operations", "is not TOML"),
        (
            "[[operations]]\nunadvertise = 'a exists'",
            ", operation 1: unadvertise takes a name, got the filter 'a exists'",
        ),
        (
            "[[operations]]\nclient = 'c'\nunsubscribe = 'a = 1'",
            "use the name that bus.content_name(events) returns",
        ),
    ],
)
def test_error_describes_an_invalid_plan(
    shell: Shell, tmp_path: Path, text: str, wrong: str
) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    result = shell("tx", file)
    assert result.code == 2
    assert wrong in result.stderr
    assert str(file) in result.stderr


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            '{"operations": [{"publish": {"x": 1}}, {"publsh": 1}]}',
            ", operation 2: there is no key 'publsh' here; did you mean 'publish'?",
        ),
        (
            '{"operations": {"publish": 1}}',
            ": operations: expected a list in [ ], got an object in { }",
        ),
        ("[]", ": expected an object in { }, got a list in [ ]"),
        ('{"operations', "is not JSON"),
    ],
)
def test_error_describes_an_invalid_json_plan(
    shell: Shell, tmp_path: Path, text: str, wrong: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    result = shell("tx", file)
    assert result.code == 2
    assert f"{file}{wrong}" in result.stderr or f"{file}: {wrong}" in result.stderr


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("5", "message 1: expected an object in { }, got a whole number; 0 were"),
        ('{"payloads": 1}', "message 1: there is no key 'payloads' here; did you mean 'payload'?"),
        ('{"headers": {"a": "b", "c": 1}}', "message 1: headers.c: expected text in quotes"),
        ("{", "message 1: is not JSON"),
    ],
)
def test_error_describes_an_invalid_json_line(line: str, wrong: str) -> None:
    source = pub._Source("t", key=None, key_separator=None, headers={}, json=True, what="message")

    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            await source.publish(bus, line.encode())

    with pytest.raises(ensue.BadInput, match=re.escape(wrong)):
        asyncio.run(main())


def test_help_of_tx_shows_the_syntax_of_operations(shell: Shell) -> None:
    shown = " ".join(shell("tx", "--help").stdout.split())
    assert "The file has an `[[operations]]` for each" in shown
    assert "`ensue sub` has none" in shown


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("pub",), "TOPIC is missing: name the topic to publish on, or use --where"),
        (("sub",), "TOPIC is missing: name the topics to read, or use --where"),
        (("pub", "topic", "--where", "x = 1"), "--where and the topic 'topic' exclude each other"),
        (("sub", "topic", "--where", "x = 1"), "--where and the topic 'topic' exclude each other"),
        (("pub", "--where", "x = "), "at character 5"),
        (("sub", "--where", "x = "), "at character 5"),
        (("pub", "--where", "x = "), "--where: expected"),
        (("sub", "--where", "x = "), "--where: expected"),
        (("sub", "--where", "x = 1", "--accept-loss"), "is for a durable subscription"),
        (("sub", "--where", "x = 1", "--from", "earliest"), "--from does not apply to --where"),
        (("sub", "--where", "x = 1", "--causal", "no"), "--causal is for --order total, not for"),
        (("pub", "--where", "x = 1", "--causal", "no"), "--causal is for --order total, not for"),
        (
            ("sub", "--where", "x = 1", "--order", "causal"),
            "--order causal does not apply to --where: leave it out, or use --order total",
        ),
        (("pub", "--where", "x = 1", "--key", "k"), "--key does not apply to --where"),
    ],
)
def test_error_names_options_that_exclude_each_other(
    shell: Shell, words: tuple[str, ...], wrong: str
) -> None:
    result = shell(*words)
    assert result.code == 2
    assert wrong in result.stderr
