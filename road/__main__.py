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
from road.experiments import PLAN
from road.plan import Plan

if TYPE_CHECKING:
    from road.runs import Job

HOME = Path(__file__).resolve().parents[1]
MEASURED = Path("road/measured")


def main(arguments: Sequence[str] | None = None, plan: Plan = PLAN, home: Path = HOME) -> None:
    """Leave with 0 where all is done, 1 where something failed, 130 where somebody stopped it."""
    options = parse(arguments)
    for signal_number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # a shell has what it starts in the background ignore the first
        signal.signal(signal_number, _stop)
    try:
        sys.exit(go(options, plan, home))
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        words = shlex.join(sys.argv[1:] if arguments is None else arguments)
        print(f"\nstopped; resume with: python -m road {words}".rstrip(), file=sys.stderr)
        sys.exit(130)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m road", description="Train and measure the compared models, and write docs/road.md."
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where the runs are kept")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these models, by recipe")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="models trained at once, with a thread each")
    parser.add_argument("--write", action="store_true", help="only write the page from what is measured")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1")
    return options


def go(options: argparse.Namespace, plan: Plan, home: Path) -> int:
    """Train what is not finished, measure what is new, compare, write."""
    from road import runs

    folder = home / MEASURED
    failed: list[str] = []
    if not options.write:
        jobs = [
            runs.job(experiment, options.runs)
            for experiment in plan.experiments
            if is_chosen(experiment.name, options.only, plan)
        ]
        with runs.alone(options.runs) as lock:
            for job in jobs:
                runs.refuse_another(job)
            todo = [job for job in jobs if job.state != "finished"]
            runs.say(f"models: {len(jobs) - len(todo)} trained, {len(todo)} to train")
            failed = runs.train(todo, options.jobs, lock)
            _measure([job for job in jobs if job.name not in failed], folder, plan)
    from road import page  # takes torch along, which training needs not wait for

    written = page.write(plan, folder, home)
    runs.say(f"written: {written[0]} and {len(written) - 1} pictures")
    if failed:
        runs.say(f"failed: {', '.join(failed)}; the same command tries them again")
    return 1 if failed else 0


def is_chosen(name: str, only: Sequence[str], plan: Plan) -> bool:
    names = [experiment.name for experiment in plan.experiments]
    for unknown in (choice for choice in only if choice not in names):
        raise UserError(f"no model '{unknown}'{nearest(unknown, names)}")
    return not only or name in only


def _measure(jobs: "list[Job]", folder: Path, plan: Plan) -> None:
    from road import measure, runs

    new = [job for job in jobs if not measure.is_fresh(folder, job, plan.shown(job.experiment))]
    for index, job in enumerate(new, 1):
        runs.say(f"measuring {index} of {len(new)}: {job.name}")
        measure.measure(folder, job, plan.shown(job.experiment))
    measure.compare_all(folder, plan, jobs)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
