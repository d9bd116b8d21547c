"""Long runs of the simulator: seeds whose process dies are named, and the run goes on."""

import os
import signal
from collections import Counter

import pytest

from tests.sim.run import Job, Ran, run_all
from tests.support.sim_run import run_seed

DEADLY = (3,)


def run_or_die(job: Job) -> Ran:
    if job.seed in DEADLY:
        os.kill(os.getpid(), signal.SIGABRT)
    return Ran(run_seed(job.seed, steps=5), differs=False, cpu_s=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(1, marks=pytest.mark.long)])
def test_seed_that_ends_its_process_is_a_violation(processes: int) -> None:
    jobs = [Job(seed, 5, trace=False, twice=False) for seed in range(1, 6)]
    found = list(run_all(jobs, processes, None, run_or_die))
    assert Counter(job.seed for job, _ in found) == Counter(range(1, 6))
    died = {job.seed for job, ran in found if ran.result.violation == "the process died"}
    assert died == set(DEADLY)
    assert all(ran.result.violation is None for job, ran in found if job.seed not in DEADLY)
