"""python -m road [--runs FOLDER] [--only NAME …] [--jobs N] [--write]: train, measure, and write docs/road.md."""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from regard.errors import UserError, nearest
from road.plan import Plan
from road.rungs import PLAN

if TYPE_CHECKING:
    from road.runs import Job

HOME = Path(__file__).resolve().parents[1]
MEASURED = Path("road/measured")


def main(arguments: Sequence[str] | None = None, plan: Plan = PLAN, home: Path = HOME) -> None:
    """Leave with 0 where all is done, 1 where something failed, 130 where somebody stopped it."""
    given = parse(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has what it starts in the background ignore the first
        signal.signal(number, _stop)
    try:
        sys.exit(go(given, plan, home))
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        words = shlex.join(sys.argv[1:] if arguments is None else arguments)
        print(f"\nstopped; go on with: python -m road {words}".rstrip(), file=sys.stderr)
        sys.exit(130)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m road", description="Train and measure the road, and write its page."
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where the runs are kept")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these rungs alone, by their recipes")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rungs trained at once, with a thread each")
    parser.add_argument("--write", action="store_true", help="only write the page from what is measured")
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: at least 1")
    return given


def go(given: argparse.Namespace, plan: Plan, home: Path) -> int:
    """Train what is not finished, measure what is new, compare, write."""
    from road import runs

    folder = home / MEASURED
    failed: list[str] = []
    if not given.write:
        jobs = [runs.job(rung, given.runs) for rung in plan.rungs if chosen(rung.name, given.only, plan)]
        with runs.alone(given.runs) as lock:
            for job in jobs:
                runs.refuse_another(job)
            todo = [job for job in jobs if job.state != "finished"]
            runs.say(f"rungs: {len(jobs) - len(todo)} trained, {len(todo)} to train")
            failed = runs.train(todo, given.jobs, lock)
            _measure([job for job in jobs if job.name not in failed], folder, plan)
    from road import page  # takes torch along, which training needs not wait for

    written = page.write(plan, folder, home)
    runs.say(f"written: {written[0]} and {len(written) - 1} pictures")
    if failed:
        runs.say(f"failed: {', '.join(failed)}; the same command tries them again")
    return 1 if failed else 0


def chosen(name: str, only: Sequence[str], plan: Plan) -> bool:
    names = [rung.name for rung in plan.rungs]
    for each in only:
        if each not in names:
            raise UserError(f"no rung '{each}'{nearest(each, names)}")
    return not only or name in only


def _measure(jobs: "list[Job]", folder: Path, plan: Plan) -> None:
    from road import measure, runs

    new = [job for job in jobs if not measure.is_fresh(folder, job, plan.shown(job.rung))]
    for number, job in enumerate(new, 1):
        runs.say(f"measuring {number} of {len(new)}: {job.name}")
        measure.measure(folder, job, plan.shown(job.rung))
    measure.compare_all(folder, plan, jobs)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
