"""A map over worker processes: results in order, few tasks in memory, no orphaned workers."""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Yield ``function(task)`` for every task, in order, computed by ``workers`` processes (1: in this process).

    Tasks are consumed as workers become free, so memory holds only a few tasks per worker.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    # Forked workers share imported modules; a fresh interpreter would import torch in every worker.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(), function)) as pool:
        under_way: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                under_way.append(pool.submit(_call_function, task))
                if len(under_way) > 2 * workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process was killed, perhaps for lack of memory; to resume, run the same command again with "
                "fewer --workers"
            ) from error
        finally:
            # A future's own cancel() leaves its task in the pool's queue, where the shutdown may wait for it forever.
            pool.shutdown(cancel_futures=True)


# The function that a worker calls for its tasks. Workers inherit it by forking, so no task pickles the vocabulary.
_function: Callable[[Any], Any] | None = None


def _call_function(task: Any) -> Any:
    assert _function is not None
    return _function(task)


def _start_worker(parent: int, function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # Ctrl-C reaches the whole process group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, args=(parent,), daemon=True).start()


def leave_with_parent(parent: int) -> None:
    """End this process when its parent is killed; a worker would otherwise wait for tasks forever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
