"""Two sides of a comparison, each in a process of its own, asked in turns: what slows the machine slows both."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Work = Callable[[], Any]  # one round of the same work; what it gives must be equal on both sides
Prepare = Callable[..., Work]
CLOCK = "BENCHMARK_CLOCK"  # wall, or cpu: what the processor spent on it, whoever else was at work


@dataclass(frozen=True)
class Result:
    """What one comparison measured: the medians of both sides, in units a second, and how they relate."""

    name: str
    unit: str
    regard: float
    peer: float
    ratio: float  # the median of the rounds' own ratios; above 1 regard is faster
    lowest: float
    highest: float
    note: str = ""


class Side:
    """A process that prepares once, then does a round whenever it is asked."""

    def __init__(self, prepare: Prepare, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, prepare, arguments), daemon=True)
        self.process.start()
        other.close()

    def round(self) -> tuple[float, Any]:
        """Seconds, and what the work gave."""
        self.pipe.send("go")
        return self.pipe.recv()

    def close(self) -> None:
        self.pipe.close()
        self.process.join()


def _serve(pipe: Any, prepare: Prepare, arguments: tuple[Any, ...]) -> None:
    work = prepare(*arguments)
    clock = time.process_time if os.environ.get(CLOCK) == "cpu" else time.perf_counter
    try:
        while pipe.recv():
            began = clock()
            result = work()
            pipe.send((clock() - began, result))
    except EOFError:
        pass


def compare(
    name: str,
    unit: str,
    amount: float,
    sides: Mapping[str, tuple[Any, ...]],
    rounds: int,
    check: Callable[[Any, Any], str] = lambda ours, theirs: "",
) -> Result:
    """Rounds of both sides in turns, the first side changing; `amount` units a round. `check` says how they agree."""
    (ours, theirs) = (Side(*sides[side]) for side in ("regard", "peer"))
    try:
        note = check(ours.round()[1], theirs.round()[1])  # the first round warms up and is not measured
        pairs = []
        for index in range(rounds):
            seconds = {side: side.round()[0] for side in ((ours, theirs) if index % 2 else (theirs, ours))}
            pairs.append((seconds[ours], seconds[theirs]))
    finally:
        ours.close()
        theirs.close()
    ratios = [peer / regard for regard, peer in pairs]
    regard, peer = (amount / statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    return Result(name, unit, regard, peer, statistics.median(ratios), min(ratios), max(ratios), note)
