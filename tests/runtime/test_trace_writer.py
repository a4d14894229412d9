import asyncio
import logging
from pathlib import Path

import pytest
from tests.transports.suite import take

import ensue
from ensue.core.trace import Row, read
from ensue.runtime import trace_writer as sink_module
from ensue.runtime.trace_writer import ParquetSink


def row(step: int) -> Row:
    return Row(run="r", node="n", step=step, at_ns=step, action="published")


def test_failed_write_is_logged_once_and_further_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sink_module, "ROWS_MAX", 2)
    sink = ParquetSink(tmp_path / "trace")
    sink.append(row(1))
    sink.append(row(2))

    def full(*_args: object, **_kwargs: object) -> Path:
        (tmp_path / "trace" / "part-00003.parquet").write_bytes(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(sink_module, "write", full)
    for step in range(3, 10):
        sink.append(row(step))
    sink.close()
    (error,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert error.name == "ensue"
    assert str(tmp_path / "trace") in error.getMessage()
    assert "disk full" in error.getMessage()
    assert sink.dropped == 7
    assert "rows_dropped=7" in caplog.text
    assert [each.step for each in read(tmp_path / "trace")] == [1, 2]


def test_trace_that_fails_while_closing_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_args: object, **_kwargs: object) -> Path:
        raise OSError("disk full")

    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path / "trace")) as bus,
            bus.subscribe("a") as events,
        ):
            await bus.publish("a", b"1")
            await take(events, 1)
            monkeypatch.setattr(sink_module, "write", full)

    asyncio.run(main())
    assert "disk full" in caplog.text
    assert not (tmp_path / "trace").exists(), "an attempt that wrote nothing stands in the way"


def test_trace_without_rows_removes_its_directory(tmp_path: Path) -> None:
    made, given = tmp_path / "made", tmp_path / "given"
    given.mkdir()
    for directory in (made, given):
        ParquetSink(directory).close()
    assert not made.exists()
    assert list(given.iterdir()) == []


def test_directory_in_use_is_refused_although_nothing_was_recorded_yet(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "trace")
    with pytest.raises(ensue.BadInput, match="is not empty"):
        ParquetSink(tmp_path / "trace")
    sink.append(row(1))
    sink.close()
    assert [each.step for each in read(tmp_path / "trace")] == [1]


def test_failed_connect_leaves_its_hub_and_removes_its_trace(tmp_path: Path) -> None:
    async def main() -> None:
        trace = str(tmp_path / "trace")
        with pytest.raises(ensue.BadInput, match="belongs to the hub itself"):
            await ensue.connect("memory://h", name="node-1", trace=trace).__aenter__()
        async with (
            ensue.connect("memory://h", order=None, trace=trace) as bus,
            bus.subscribe("a") as events,
        ):
            await bus.publish("a", b"1")
            await take(events, 1)
        assert read(trace)

    asyncio.run(main())


@pytest.mark.parametrize("trace", ["/proc/nope", "nul\0byte", "file/below"])
def test_unusable_trace_path_is_refused_when_connecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")

    async def main() -> None:
        with pytest.raises(ensue.BadInput, match=f"{trace} can't hold a trace"):
            await ensue.connect("memory://h", trace=trace).__aenter__()
        async with ensue.connect("memory://h", order=None):
            pass

    asyncio.run(main())
