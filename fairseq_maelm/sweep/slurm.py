"""Run the programs of a sweep as SLURM jobs, through submitit (the extra ``slurm``).

Jobs in the queue continue after the sweep is stopped. A restarted sweep finds them by their recorded job ids.
"""

import logging
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.launch.command_line import number_if_it_is_one
from fairseq_maelm.options import UsageError
from fairseq_maelm.sweep.jobs import Job, read_json

logger = logging.getLogger(__name__)

# submitit's parameters for all types of cluster; names of other parameters begin with "slurm_".
_SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node")
_DEFAULTS: dict[str, Any] = {"timeout_min": 240, "cpus_per_task": 4, "name": "maelm_sweep"}
_CLUSTERS = ("slurm", "local")
# Script of a job, which needs neither this package nor torch. Arguments: path of the log; "resumes" to keep the earlier
# log, or ""; first line to log; folder of Python; command. The script waits until no other program has locked the log.
_WORK = """
exec >>"$0" 2>&1 </dev/null
flock 1
[ "$1" ] || truncate --size 0 "$0"
echo "$2"
PATH="$3:$PATH" exec env "${@:4}"
"""


def parse_parameters(words: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE as submitit's parameters; raise a UsageError for anything else."""
    parameters: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name.isidentifier() and value):
            raise UsageError(f"--slurm {word}: it must be NAME=VALUE, such as partition=gpu or timeout_min=240")
        parameters[name] = number_if_it_is_one(value)
    if parameters.get("cluster", "slurm") not in _CLUSTERS:
        raise UsageError(f"--slurm cluster={parameters['cluster']}: choose from {' and '.join(_CLUSTERS)}")
    return parameters


class SubmittedJob:
    """A submitit job, and the file that stores its SLURM job id."""

    def __init__(self, job: Any, record: Path) -> None:
        self.job, self.record = job, record

    def poll(self) -> str | None:
        """Return None while the job waits or runs, "" after exit status 0, otherwise the reason for the failure."""
        if not self.job.done():
            return None
        try:
            status = self.job.result()
        except Exception as error:  # submitit raises the job's own exceptions
            state, lines = self.job.state, str(error).strip().splitlines() or ["no message"]
            ended = f"the job {self.job.job_id} ended without a result ({state}: {lines[0]}; {self.job.paths.stderr})"
        else:
            ended = f"exit status {status}" if status else ""
        self.record.unlink(missing_ok=True)
        return ended


class SlurmLauncher:
    """Submits programs, and finds jobs that were submitted earlier.

    Args:
        parameters: submitit's parameters; ``cluster`` is "slurm", or "local" for processes of this machine.

    Raises:
        ValueError: submitit or SLURM is missing, or submitit refuses a parameter.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ValueError("--slurm needs submitit: pip install 'fairseq_maelm[slurm]'") from error
        given = dict(parameters)
        self.cluster = str(given.pop("cluster", "slurm"))
        self._job_class = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}[self.cluster]
        self._make = submitit.AutoExecutor
        self._parameters = {
            name if name in _SHARED or name.startswith("slurm_") else f"slurm_{name}": value
            for name, value in {**_DEFAULTS, **given}.items()
        }
        if self.cluster == "slurm" and shutil.which("srun") is None:
            raise ValueError("--slurm: there is no SLURM on this machine (no srun); run it on a login node")
        self._executor(Path("."))

    def _executor(self, folder: Path) -> Any:
        executor = self._make(folder=folder, cluster=self.cluster)
        try:
            executor.update_parameters(**self._parameters)
        except (AssertionError, NameError, TypeError) as error:
            raise ValueError(f"--slurm: {error}") from error
        return executor

    def start(self, job: Job, slot: str) -> SubmittedJob:
        """Submit a job, or find an earlier submission of it."""
        # Named after the marker, because a folder may have the markers of several jobs.
        folder, record = job.marker.with_suffix(".submitit"), job.marker.with_suffix(".submitted.json")
        earlier = read_json(record)
        if earlier is not None and earlier["cluster"] == self.cluster:
            found = self._job_class(folder=folder, job_id=earlier["job"])
            if found.paths.result_pickle.exists() or not found.done():
                return SubmittedJob(found, record)
        # Process ids are reused, and the names of result files contain them.
        shutil.rmtree(folder, ignore_errors=True)
        process = job.process(slot)
        own = [str(job.log), "resumes" * job.resumes, f"$ {process}", str(Path(sys.executable).parent)]
        variables = [f"{name}={value}" for name, value in process.environment.items()]
        submitted = self._executor(folder).submit(
            subprocess.call, ["bash", "-c", _WORK, *own, *variables, *process.words]
        )
        write_json(record, {"cluster": self.cluster, "job": submitted.job_id})
        return SubmittedJob(submitted, record)

    def leave(self, running: Sequence[Any]) -> None:
        """Leave the jobs in the queue."""
        if running:
            numbers = " ".join(each.job.job_id for each in running)
            logger.info("%d jobs continue without this process; to stop them: scancel %s", len(running), numbers)
