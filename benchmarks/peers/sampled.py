"""Runs a module or script and samples the CPU time of its main thread.

What other processes take does not count, so the shares hold on a busy machine, where those of
cProfile don't; and what runs is hardly slowed down. Python takes a sample at the next call or loop,
so what a function takes itself may be counted for its neighbor; what it takes with all that it
called is right.

    python -m benchmarks.peers.sampled FILE MODULE|SCRIPT ARGUMENT…

writes to FILE, at the end, the milliseconds of each function: its own, and with all that it called.
"""

import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

__all__: list[str] = []

INTERVAL_S = 0.001
"""Asked for; the kernel gives what it can, and says nothing: each sample counts for its share."""
SHOWN_MAX = 60


class Sampler:
    """Counts the functions on the stack after each interval of CPU time."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()
        self.samples = 0

    def sample(self, number: int, frame: FrameType | None) -> None:
        """Record the stack."""
        del number
        self.samples += 1
        if frame is not None:
            self.own[_name(frame)] += 1
            self.lines[f"{_file(frame)}:{frame.f_lineno}"] += 1
        seen = set()
        while frame is not None:
            seen.add(_name(frame))
            frame = frame.f_back
        self.whole.update(seen)

    def report(self, cpu_s: float) -> str:
        """Return the tables."""
        each_ms = cpu_s * 1000 / max(1, self.samples)
        parts = [f"{cpu_s * 1000:,.0f} ms of CPU in {self.samples:,} samples"]
        for title, counted in (
            ("own", self.own),
            ("own, by line", self.lines),
            ("with what it called", self.whole),
        ):
            parts.append(f"\n{title}, ms")
            parts.extend(
                f"{count * each_ms:10,.1f}  {name}"
                for name, count in counted.most_common(SHOWN_MAX)
            )
        return "\n".join(parts) + "\n"


def _file(frame: FrameType) -> str:
    return "/".join(Path(frame.f_code.co_filename).parts[-3:])


def _name(frame: FrameType) -> str:
    return f"{_file(frame)} {frame.f_code.co_qualname}"


def main(out: Path, what: str, arguments: list[str]) -> None:
    """Run it."""
    sampler = Sampler()
    sys.argv = [what, *arguments]
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    began_s = time.process_time()
    try:
        if what.endswith(".py") or "/" in what:
            runpy.run_path(what, run_name="__main__")
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write_text(sampler.report(time.process_time() - began_s), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
