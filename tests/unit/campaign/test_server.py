"""The server that workers are forked from, and the device probe: in processes of their own, as a command has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import tiny_spec

from comt_cli.campaign.server import context_for

TESTS = Path(__file__).resolve().parents[2]

PROBING = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import shared_runs
from comt_cli.campaign.probe import device_probe
from comt_cli.campaign.server import context_for
from comt_cli.training.processes import StopSignal

def look(queue):
    server = Path(f"/proc/{os.getppid()}")
    names = ("torch", "torch._dynamo", "comt_cli.training.loop")
    queue.put((len(list((server / "task").iterdir())), [name in sys.modules for name in names]))

if __name__ == "__main__":
    specs = [RunSpec.model_validate_json(text) for text in sys.stdin.read().splitlines()]
    with device_probe("cpu", None, shared_runs(specs), Path("runs")) as probe:
        workers = probe.workers(StopSignal())
        context = context_for(["cpu"])
        queue = context.SimpleQueue()
        process = context.Process(target=look, args=(queue,))
        process.start()
        threads, imported = queue.get()
        process.join()
    print(json.dumps({
        "devices": workers.devices, "name": workers.name, "threads": threads, "imported": imported,
        "here": "torch" in sys.modules,
    }))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
def test_torch_is_imported_once_by_a_server_of_one_thread_and_not_by_the_command(tiny_corpus, tmp_path):
    """A process that forks must have no other thread, whose locks would stay shut in what it forks."""
    script = tmp_path / "probing.py"
    script.write_text(PROBING)
    specs = "\n".join(tiny_spec(tiny_corpus, seed=seed).model_dump_json() for seed in (1, 2))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, script, str(TESTS)],
        input=specs, env=environment, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["threads"] == 1
    assert found["imported"] == [True, True, True]
    assert not found["here"]
    assert set(found["devices"]) == {"cpu"}
    assert "thread" in found["name"]


def test_workers_of_gpus_import_everything_themselves():
    assert context_for(["cuda:0", "cuda:1"]).get_start_method() == "spawn"
    assert context_for(["cuda:0", "cpu"]).get_start_method() == "spawn"
    assert context_for(["cpu"]).get_start_method() == ("forkserver" if sys.platform == "linux" else "spawn")


LEAVING = """
import multiprocessing
from comt_cli.campaign.server import signals_blocked
from comt_cli.training.processes import begin_as_worker, end_process

def work():
    begin_as_worker()
    multiprocessing.RLock()  # as tqdm makes one for Inductor's progress bar
    end_process(0)

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=work)
        with signals_blocked():
            process.start()
        process.join()
        assert process.exitcode == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker does not take the start method fork")
def test_workers_leave_no_semaphores(tmp_path):
    """Of three workers Python said: "There appear to be 3 leaked semaphore objects to clean up at shutdown"."""
    script = tmp_path / "leaving.py"
    script.write_text(LEAVING)
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
