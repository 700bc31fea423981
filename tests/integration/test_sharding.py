"""`train.sharding: fsdp`: processes that hold a part of the model each, compared with ones that hold it all.

Tolerances. With two processes both ways compute the same gradients to the bit: a + b = b + a, and halving is exact.
What is left is the norm of all gradients, whose squares are added up in another order, and the optimiser, which goes
through a part of a tensor in other steps of the processor's vectors: each is some 1e-7 off, relative, and an epsilon of
1e-4 keeps Adam's division from making more of it. So after five updates losses agree to 1e-6.
In bf16 the norm itself has 8 bits where it is taken of whole bf16 gradients, so a clipped step may be 2^-8 longer.
"""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import isolation
import pytest
import torch
from same_bits import Reason, assert_same_bits
from tiny_runs import Stopped, assert_same_run, tiny_spec, train, training
from torch import Tensor
from worlds import DEPENDS_ON_PROCESSES, assert_close, run_together

from comt_cli.data.prepare import prepare
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.models.build import model_of
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Evaluating, Event, Listener, StepReport, ignore
from comt_cli.training.loop import Training
from comt_cli.training.parallel import World, full_tensors, is_sharded, join_world, local_tensor, units_of
from comt_cli.training.processes import StopSignal

COMMON = {
    "steps": 5, "batch_size": 12, "log_every": 1, "save_every": 100, "learning_rate": 1e-3, "epsilon": 1e-4,
    "evaluate_every": 4, "evaluation_batch_size": 5,
}  # fmt: skip
SAME: dict[str, tuple[dict[str, Any], float]] = {
    "single numbers, clipped": ({"method": "transponder", "gradient_clipping": 0.3}, 4e-6),
    "recomputed": ({"method": "transponder", "activation_checkpointing": True, "micro_batch_size": 2}, 4e-6),
    "tied, gates, accumulated": (
        {"model": {"tied_embeddings": True}, "optimizer": "adamw", "weight_decay": 0.3, "micro_batch_size": 2},
        4e-6,
    ),
    "streams, recomputed": (
        {"method": {"name": "comt", "residual": "hyper-connections"}, "activation_checkpointing": True},
        4e-6,
    ),
    "fused, recomputed": ({"method": "comt", "kernels": "fused", "activation_checkpointing": True, "seed": 3}, 4e-6),
    "pure": ({"method": "transponder", "precision": "bf16-pure", "gradient_clipping": 0.3}, 1e-2),
}
"""Runs to compare, and how far apart their losses and norms may be: in fp32 some 2^-22 for each of a few sums, of which
that of a norm is taken in parts; in bf16 one unit in the last place, 2^-7."""
_STATES: dict[str, Any] = {"numbers that are no parameters": "mhc", "following": {"name": "prores", "updates": 1}}
BRIEF = {
    kind: ({"method": method, "steps": 2, "warmup_steps": 0, "evaluate_every": 2}, 1e-6)
    for kind, method in _STATES.items()
}
"""Other kinds of states: two updates, the second from what the first made."""
CLIPPED = {"single numbers, clipped", "pure"}
FAST = ["single numbers, clipped", "fused, recomputed"]
"""Those that are compared in every run of the tests."""


def spec_of(corpus: str, name: str, sharding: str = "none", **more: Any) -> RunSpec:
    return tiny_spec(corpus, sharding=sharding, **COMMON | (SAME | BRIEF)[name][0] | more)


def run(spec: RunSpec, folder: Path, world: World, listener: Listener = ignore, stop: StopSignal | None = None):
    """Train in this process of `world`, which may be told to stop."""
    work = training(spec, folder, world=world, listener=listener, stop=stop)
    if isinstance(listener, Disturb):
        listener.work = work
    with contextlib.suppress(RunInterrupted, Stopped):
        work.run()
    return work


class Disturb:
    """Does something to a run: after a logged step, or after the first batch of an evaluation (step None)."""

    def __init__(self, how: str, step: int | None, *, here: bool = True) -> None:
        self.how, self.step, self.here = how, step, here
        self.work: Training

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepReport) and event.step == self.step:
            self.disturb()
        if isinstance(event, Evaluating) and not event.done and self.step is None:
            self.work.task.objective.register_forward_hook(lambda *_: self.disturb())

    def disturb(self) -> None:
        if self.how == "kill":  # every process, as far as the files can tell
            raise Stopped
        if not self.here:
            return
        if self.how == "stop":
            self.work.stop.number = signal.SIGTERM
        if self.how == "poison":
            weight = local_tensor(self.work.model.blocks[1].mlp.down.weight)
            with torch.no_grad():
                weight[-1, -1] = torch.nan


# ---- two processes


def two(rank: int, corpus: str, folder: str, names: list[str], everything: bool) -> None:
    """Work of two processes: runs to compare, and everything else."""
    path = Path(folder)
    with join_world("cpu") as world:
        for name in names:
            for sharding in ("none", "fsdp"):
                run(spec_of(corpus, name, sharding), path / sharding, world)
        if not everything:
            return
        cut = spec_of(corpus, "recomputed", "fsdp")
        whole = spec_of(corpus, "recomputed", "none")
        run(cut, path / "alone, then fsdp", world)
        run(whole, path / "ddp, then fsdp", world, Disturb("stop", 3))
        run(cut, path / "ddp, then fsdp", world)
        run(cut, path / "fsdp, then alone", world, Disturb("stop", 3))
        # On the second process alone: no other has a weight that is not a number.
        poison = Disturb("poison", 3, here=rank == 1)
        run(spec_of(corpus, "tied, gates, accumulated", "fsdp", save_every=3), path / "poisoned", world, poison)
        check_what_is_held(spec_of(corpus, "single numbers, clipped", "fsdp"), path / "held", world)
        compile_without_a_compiler()
        run(spec_of(corpus, "fused, recomputed", "fsdp", compile=True), path / "compiled", world)


def check_what_is_held(spec: RunSpec, folder: Path, world: World) -> None:
    """Half of every matrix in each process, of Adam's moments too, after a training step and after an evaluation."""
    work = run(spec, folder, world)
    parameters = work.updater.parameters
    assert {parameter.dim() == 0 for parameter in parameters if not is_sharded(parameter)} == {True}
    assert {parameter.dim() > 0 for parameter in parameters if is_sharded(parameter)} == {True}
    for parameter in parameters:
        moment = work.optimizer.state[parameter]["exp_avg"]
        if parameter.dim() == 2 and len(parameter) % 2 == 0:
            assert local_tensor(parameter).numel() == local_tensor(moment).numel() == parameter.numel() // 2
    assert not is_sharded(work.model.head_weight), "the evaluation at the end left the outermost unit whole"
    work.model.state_dict()  # what saving begins with
    assert all(is_sharded(parameter) == (parameter.dim() > 0) for parameter in work.model.parameters())


def compile_without_a_compiler() -> None:
    """Through Dynamo alone, which is where a graph would break."""
    compiler = torch.compile
    torch.compile = lambda function, **options: compiler(function, backend="eager", **options)  # type: ignore[assignment]


@pytest.fixture(scope="module")
def both(request, tiny_corpus, tmp_path_factory, only_nursery):
    """The folder with what two processes did, as far as the chosen tests look at it, and one process before and after
    them."""
    folder = tmp_path_factory.mktemp("sharding")
    chosen = [each for each in request.session.items if "both" in getattr(each, "fixturenames", ())]
    everything = any(each.get_closest_marker("slow") for each in chosen)
    names = [*SAME, *BRIEF] if everything else FAST
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(isolation.cache_folder()))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for name in names:
            train(spec_of(tiny_corpus, name), folder / "alone")
        begun = spec_of(tiny_corpus, "recomputed")
        if everything:
            with pytest.raises(Stopped):
                training(spec_of(tiny_corpus, "recomputed", save_every=3), folder / "alone, then fsdp",
                         listener=Disturb("kill", 4)).run()  # fmt: skip
        try:
            run_together(only_nursery, 2, two, tiny_corpus, str(folder), names, everything)
        finally:
            only_nursery.end_all()
        if everything:
            state = read_state(RunDirectory.of(folder / "fsdp, then alone", begun).checkpoint_file, mapped=False)
            torch.save(state, folder / "cut.pt")
            train(begun, folder / "fsdp, then alone")
        torch.set_num_threads(threads)
    return folder


def lines_of(folder: Path, spec: RunSpec) -> list[dict[str, Any]]:
    return RunDirectory.of(folder, spec).metrics()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in (SAME | BRIEF)]
)
def test_parts_train_as_the_whole(both, tiny_corpus, name):
    spec, tolerance = spec_of(tiny_corpus, name), (SAME | BRIEF)[name][1]
    directories = [RunDirectory.of(both / kind, spec) for kind in ("fsdp", "none", "alone")]
    cut, whole, alone = (directory.metrics() for directory in directories)
    assert len(cut) == (5 + 1 + 1 if name in SAME else 2 + 1)  # steps, and evaluations
    assert_close(cut, whole, tolerance)
    # One process adds the rows up in another order; in bf16 that alone is 2^-8 of every number.
    rounding = 1e-2 if "bf16" in spec.settings.train.precision else 1e-5
    assert_close(cut, alone, max(tolerance, rounding), but=DEPENDS_ON_PROCESSES)
    initial = 1e-4 if "bf16" in spec.settings.train.precision else 4e-6  # other weights would be 1e-2 off
    assert cut[0]["loss"] == pytest.approx(alone[0]["loss"], rel=initial), (
        "the initial weights are those of one process"
    )
    if name in CLIPPED:
        assert min(line["gradient_norm"] for line in cut[:4]) > 2 * 0.3, "nothing would be clipped"
    mine, others = (read_state(directory.checkpoint_file)["model"] for directory in directories[:2])
    for key, weight in others.items():
        apart = (mine[key].double() - weight.double()).abs()
        assert apart.max() <= tolerance, key
        assert apart.mean() <= tolerance / 20, key  # in bf16 training moves a weight by half a tolerance


@pytest.mark.slow
def test_going_on_in_another_way(both, tiny_corpus):
    """Begun whole and gone on with in parts, and the other way round: a checkpoint does not say who wrote it."""
    spec = spec_of(tiny_corpus, "recomputed")
    assert spec.id == spec_of(tiny_corpus, "recomputed", "fsdp").id
    alone = lines_of(both / "alone", spec)
    for name, differs in (
        ("alone, then fsdp", ["processes", "sharding"]),
        ("ddp, then fsdp", ["sharding"]),
        ("fsdp, then alone", ["processes", "sharding"]),
    ):
        directory = RunDirectory.of(both / name, spec)
        entries = json.loads(directory.environment_file.read_text())
        assert [entry["step"] for entry in entries] == [0, 3 if name == "alone, then fsdp" else 4]
        assert entries[-1]["differs"] == differs
        assert_close(directory.metrics(), alone, 1e-5, but=DEPENDS_ON_PROCESSES)


@pytest.mark.slow
def test_a_checkpoint_of_parts_is_an_ordinary_one(both, tiny_corpus, tmp_path):
    """After step 4, beside that of one process: the same keys, shapes, types, and numbers; and other verbs read it."""
    spec = spec_of(tiny_corpus, "recomputed")
    stop = StopSignal()
    listener = Disturb("stop", 3)
    listener.work = training(spec, tmp_path, listener=listener, stop=stop)
    with pytest.raises(RunInterrupted):
        listener.work.run()
    mine, expected = read_state(both / "cut.pt"), read_state(RunDirectory.of(tmp_path, spec).checkpoint_file)
    different = {"seconds", "waiting_seconds", "metrics_bytes", "timings_bytes", "last_finite_loss"}
    assert compare(mine.pop("progress"), expected.pop("progress")) <= different
    assert mine.pop("spec")["settings"]["train"].pop("sharding") == "fsdp"
    expected.pop("spec")
    assert list(mine) == list(expected)
    assert list(mine["model"]) == list(expected["model"])
    assert compare(mine, expected) == set()
    loaded = load(both / "cut.pt", LoadedModel).model
    assert loaded.state_dict().keys() == mine["model"].keys()


def compare(mine: Any, expected: Any, name: str = "") -> set[str]:
    """The names under which two nested values differ."""
    if isinstance(expected, dict):
        assert mine.keys() == expected.keys(), name
        return set().union(*(compare(mine[key], expected[key], str(key)) for key in expected))
    if isinstance(expected, Tensor):
        assert type(mine) is Tensor
        assert (mine.shape, mine.dtype, mine.device) == (expected.shape, expected.dtype, expected.device)
        return set() if torch.allclose(mine.double(), expected.double(), rtol=1e-5, atol=1e-7) else {name}
    return set() if mine == expected else {name}


@pytest.mark.slow
def test_weights_that_one_process_alone_knows_to_be_bad_are_not_saved(both, tiny_corpus):
    directory = RunDirectory.of(both / "poisoned", spec_of(tiny_corpus, "tied, gates, accumulated", save_every=3))
    assert directory.result()["state"] == "diverged"
    assert directory.result()["step"] == 4
    assert not directory.checkpoint_file.exists()


@pytest.mark.slow
def test_compiled_blocks(both, tiny_corpus):
    """Each block by itself, recomputed inside: the same numbers as of blocks not compiled."""
    spec, compiled = (spec_of(tiny_corpus, "fused, recomputed", compile=on) for on in (False, True))
    assert_close(lines_of(both / "compiled", compiled), lines_of(both / "none", spec), 1e-6)


# ---- three processes, for which no matrix of width 32 divides evenly


def check_gathering(size: int) -> None:
    """Cut tensors are whole again, also where shards are shorter, or empty."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    for rows in (1, 2, 3, 4, 5, 7):
        whole = torch.arange(rows * 2.0).view(rows, 2)
        cut = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
        assert_same_bits(full_tensors({"it": cut}, keep=True), {"it": whole}, Reason.MOVED, f"{rows} rows")


def three(rank: int, spec_json: str, folder: str) -> None:
    """A run that is stopped by a signal to one process, after a step, in an evaluation; killed; and one that is not."""
    spec = RunSpec.model_validate_json(spec_json)
    with join_world("cpu") as world:
        check_gathering(world.size)
        for how, step in (("stop", 1), ("stop", None), ("kill", 6)):
            run(spec, Path(folder) / "disturbed", world, Disturb(how, step, here=rank == 1))
        run(spec, Path(folder) / "disturbed", world)
        run(spec, Path(folder) / "undisturbed", world)


@pytest.mark.slow
def test_parts_go_on_to_the_bit(tiny_corpus, tmp_path, nursery):
    spec = tiny_spec(
        tiny_corpus, method="transponder", steps=7, batch_size=12, micro_batch_size=2, gradient_clipping=0.3,
        log_every=1, save_every=5, evaluate_every=3, sharding="fsdp",
    )  # fmt: skip
    prepare(spec.settings.data)
    run_together(nursery, 3, three, spec.model_dump_json(), str(tmp_path))
    disturbed, undisturbed = (RunDirectory.of(tmp_path / name, spec) for name in ("disturbed", "undisturbed"))
    starts = json.loads(disturbed.environment_file.read_text())
    assert [start["step"] for start in starts] == [0, 2, 3, 5]
    assert not any(start["differs"] for start in starts)
    assert_same_run(disturbed, undisturbed)


# ---- one process


def test_one_process_trains_as_without(tiny_corpus, tmp_path):
    first, second = (
        train(tiny_spec(tiny_corpus, steps=4, sharding=sharding), tmp_path / sharding) for sharding in ("none", "fsdp")
    )
    assert_same_run(first, second)
    assert json.loads(second.environment_file.read_text())[0]["sharding"] == "none"


def test_a_parameter_of_two_blocks_is_refused(tiny_corpus):
    model = model_of(tiny_spec(tiny_corpus))
    assert list(units_of(model)) == ["blocks.0", "blocks.1", "embedding", "entry", "final_norm", "head"]
    first, second = model.blocks
    second.mlp_connection = first.mlp_connection
    with pytest.raises(UserError, match=r"fsdp cannot shard blocks.1.mlp_connection.norm.weight, which another part"):
        units_of(model)
