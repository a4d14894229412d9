"""`ensue mailboxes`: list durable subscriptions by content, and forget one."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.helpers import Shell
from tests.cli.test_content import SYNC_S, ended, started
from tests.server.helpers import serving, within

import ensue
from ensue.server import status


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "FRESH_S", 0.0)


def test_mailboxes_are_listed_and_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            ensue.connect(server.url, order=None, name="a") as a,
        ):
            await within(a.advertise(where="x exists"))
            async with a.subscribe(where="x > 0", name="billing", durable=True) as events:
                listing = await started(server, "mailboxes", "list", "--json")
                code, out, _ = await ended(listing)
                (one,) = json.loads(out)["mailboxes"]
                assert (code, one["name"], one["has_reader"]) == (0, "billing", True)
                await within(a.publish({"x": 1}, b"1"))
                assert (await within(anext(events))).payload == b"1"
            await within(a.publish({"x": 1}, b"2"))
            code, out, _ = await ended(await started(server, "mailboxes", "list", "--json"))
            (one,) = json.loads(out)["mailboxes"]
            assert (one["waiting"], one["has_reader"], one["where"]) == (1, False, "x > 0")
            assert one["bytes"] > 0
            code, out, _ = await ended(await started(server, "mailboxes", "list"))
            assert "billing" in out
            assert "h ago" in out
            code, out, _ = await ended(await started(server, "mailboxes", "forget", "billing"))
            assert (code, out) == (0, "billing is forgotten\n")
            code, _, err = await ended(await started(server, "mailboxes", "forget", "billing"))
            assert code == 2
            assert "there is no durable subscription 'billing' by content" in err

    asyncio.run(main())


def test_idle_mailboxes_are_listed_beside_many_that_are_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "SUBSCRIPTIONS_MAX", 1)
    monkeypatch.setattr(status, "MAILBOXES_MAX", 2)

    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            ensue.connect(server.url, order=None, name="a") as a,
        ):
            await within(a.advertise(where="x exists"))
            for name in ("idle", "behind", "latest"):
                filters = {"idle": "x > 9", "behind": "x > 0", "latest": "x > 9"}
                async with a.subscribe(where=filters[name], name=name, durable=True):
                    pass
            await within(a.publish({"x": 1}, b"1"))
            code, out, _ = await ended(await started(server, "mailboxes", "list", "--json"))
            found = json.loads(out)
            assert (code, found["count"]) == (0, 3)
            assert [one["name"] for one in found["mailboxes"]] == ["behind", "idle"]
            _, out, _ = await ended(await started(server, "mailboxes", "list"))
            assert out.endswith("and 1 more, read more recently\n")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("mailboxes", "look"), "expected list or forget, got 'look'"),
        (("mailboxes", "list", "billing"), "mailboxes list takes no name, got 'billing'"),
        (("mailboxes", "forget"), "mailboxes forget needs a name"),
        (("mailboxes", "list", "--timeout", "0"), "expected a number of seconds above 0"),
    ],
)
def test_wrong_words_are_named(shell: Shell, words: tuple[str, ...], wrong: str) -> None:
    result = shell(*words)
    assert result.code == 2
    assert wrong in result.stderr
