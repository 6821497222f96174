"""In which order the nodes of a run are made: each as soon as what it needs is there, independent ones beside each other.

A node that fails stops what needs it and nothing else; in the end all failures are told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from flows.graph.plan import Step
from pipeline.core.errors import ClozeError, Stopped

MOST_AT_ONCE = 32  # nodes that run or wait for a slot; slots say how many of them compute


class Failures(ClozeError):
    """Several nodes failed. Attributes: errors: by node; exit_code: theirs where all have the same one, else 1."""

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        told = "; ".join(f"{name}: {sentence(error)}" for name, error in errors.items())
        super().__init__(f"{len(errors)} nodes failed: {told}")
        self.errors = dict(errors)
        codes = {getattr(error, "exit_code", 1) for error in errors.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else 1


def sentence(error: BaseException) -> str:
    """What an error says; one that is not ours, with its kind."""
    return str(error) if isinstance(error, ClozeError) else f"{type(error).__name__}: {error}".removesuffix(": ")


def told(errors: Mapping[str, BaseException]) -> BaseException:
    """What to raise for the nodes that failed: the error itself where it is one."""
    return next(iter(errors.values())) if len(errors) == 1 else Failures(errors)


def run_in_order(
    steps: Sequence[Step],
    make: Callable[[Step], object],
    *,
    skipped: Callable[[Step, str], None],
    stop: Callable[[], None],
) -> None:
    """Call `make` for every step, in threads.

    Args:
        skipped: told of a step that cannot be made, and of the node that failed before it.
        stop: asks those that run to end; called when this thread is interrupted.

    Raises:
        Failures: several nodes failed; of a single one, its error itself.
        Stopped: this thread was interrupted, and a training saved a checkpoint; else what interrupted it.
    """
    waiting = {step.name: step for step in steps}
    done: set[str] = set()
    errors: dict[str, BaseException] = {}
    running: dict[Future[object], Step] = {}
    with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="node") as pool:
        try:
            while waiting or running:
                for step in [step for step in waiting.values() if done.issuperset(step.after)]:
                    running[pool.submit(make, waiting.pop(step.name))] = step
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    step = running.pop(future)
                    error = future.exception()
                    if error is None:
                        done.add(step.name)
                    else:
                        errors[step.name] = error
                _skip(waiting, errors, skipped)
        except BaseException:
            stop()
            for future in running:
                future.cancel()
            wait(running)
            ended = [future.exception() for future in running if not future.cancelled()]
            saved = next((error for error in ended if isinstance(error, Stopped)), None)
            if saved is not None:
                raise saved from None
            raise
    if errors:
        raise told(errors)


def _skip(waiting: dict[str, Step], errors: Mapping[str, BaseException], skipped: Callable[[Step, str], None]) -> None:
    """Leave out what can never be made; one after another, for the steps stand in their order."""
    lost = {name: name for name in errors}
    for name, step in list(waiting.items()):
        cause = next((lost[parent] for parent in step.after if parent in lost), None)
        if cause is not None:
            lost[name] = cause
            skipped(waiting.pop(name), cause)
