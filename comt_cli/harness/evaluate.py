"""Language models on tasks of lm-evaluation-harness: each task's result is kept, and none is computed twice.

A model is what its folder in Hugging Face's layout holds, loaded by the harness's own class, so that its numbers are
those of `lm_eval --model hf` on that folder. Requests that were answered before a stop are in a file of the harness's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from comt_cli.data.images.pictures import make_torchvision_importable
from comt_cli.data.storage import ProgressCallback, file_lock, first_line
from comt_cli.errors import UserError
from comt_cli.files import make_folder, sha256
from comt_cli.harness.python_docs import OWN_TASKS, write_tasks
from comt_cli.harness.subjects import Subject
from comt_cli.installing import install_extra
from comt_cli.recipe.problems import nearest
from comt_cli.runs.evaluations import TaskMetric, TaskResult, read_result, write_result

SEED = 1234
"""Of the examples in prompts, as `lm_eval` has it unless told otherwise."""
_WEIGHTED = {"weighted_perplexity", "bits_per_byte"}


@dataclass(frozen=True)
class Options:
    """How tasks are run; `limit` takes the first items only, and `num_fewshot` None is as the task says."""

    limit: int | None = None
    num_fewshot: int | None = None
    batch_size: int = 16
    device: str = "cpu"


def check_installed() -> None:
    """Raise `UserError` where there is no lm-evaluation-harness."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("--tasks needs lm-evaluation-harness, which is not installed", install_extra("evaluate"))


def load_tasks(names: Sequence[str], options: Options, progress: ProgressCallback) -> dict[str, Any]:
    """The tasks by name, with their data: comt's own, those of the harness, and task files by their path; of groups and
    tags every task. Raises `UserError` where one is not known, or its data is not here and cannot be fetched."""
    _stay_offline()
    make_torchvision_importable()
    from lm_eval.tasks import TaskManager

    own = write_tasks(progress) if any(name in OWN_TASKS for name in names) else None
    only_own = all(name in OWN_TASKS or Path(name).is_file() for name in names)  # else 15,000 files are read
    manager = TaskManager(include_path=None if own is None else str(own), include_defaults=not only_own)
    for name in names:
        if name not in manager.all_tasks and not Path(name).is_file():
            hint = nearest(name, [*OWN_TASKS, *manager.all_tasks]).replace("valid: ", "lm_eval ls tasks lists them: ")
            raise UserError(f"--tasks: there is no task {name!r}", hint if len(hint) < 200 else _LISTED)
    found: dict[str, Any] = {}
    for name in names:
        try:
            found |= manager.load([name])["tasks"]
        except Exception as error:  # of `datasets`, the hub's client, HTTP libraries, YAML and the task's own code
            said = f"--tasks: {name} cannot be loaded, nothing is evaluated: {first_line(error)}"
            needs_network = isinstance(error, OSError) or "ffline" in str(error)
            hint = "Its data has to be fetched once: run the same command where there is a network, or copy the cache"
            raise UserError(said, f"{hint} folder of `datasets` from there." if needs_network else None) from error
    if own is not None:
        progress(f"comt's own tasks are in {own}, for lm_eval --include_path", 0, None)
    for task in found.values():
        asked = options.num_fewshot if task.get_config("num_fewshot") != 0 else 0  # a task may refuse, as in lm_eval
        task.set_config("num_fewshot", asked if asked is not None else task.get_config("num_fewshot") or 0)
    return found


_LISTED = "`lm_eval ls tasks` lists them; a path to a task's YAML file is one, too."


def _stay_offline() -> None:
    """Without a network use what is in the caches, where `datasets` would try every file again for half a minute."""
    if not any(os.environ.get(key) for key in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy")):
        try:
            socket.getaddrinfo("huggingface.co", 443)
        except OSError:
            os.environ["HF_HUB_OFFLINE"] = "1"


def results(subject: Subject, tasks: Mapping[str, Any], options: Options) -> Iterator[tuple[TaskResult, Path, bool]]:
    """The result of every task, the file that keeps it, and whether it was there before.

    Raises:
        UserError: the model cannot be loaded as a language model, or a task cannot be run on it.
        StorageError: a result cannot be written.
    """
    make_folder(subject.kept)
    with contextlib.ExitStack() as stack:
        stack.enter_context(file_lock(subject.kept / ".lock"))
        model = None
        for name, task in tasks.items():
            items, version = items_hash(task, options.limit), metadata.version("lm_eval")
            key = sha256(f"{items} {version} {subject.weights}")[:12]
            path = subject.kept / f"{name.replace('/', '-')}-{key}.json"
            if path.exists():
                yield read_result(path), path, True
                continue
            if model is None:
                folder = stack.enter_context(subject.folder())
                model = _load(subject, folder, options)
            answered = path.with_suffix(".answers")  # an SQLite file of the harness's
            found = _run(model, name, task, options, answered)
            result = TaskResult(
                task=name,
                version=str(task.VERSION),
                items=items,
                count=len(found["samples"][name]),
                limit=options.limit,
                num_fewshot=int(task.get_config("num_fewshot")),
                model=subject.name,
                weights=subject.weights,
                lm_eval=version,
                device=options.device,
                metrics=_metrics(task, found["results"][name], found["samples"][name]),
            )
            write_result(path, result)
            answered.unlink(missing_ok=True)
            yield result, path, False


def items_hash(task: Any, limit: int | None) -> str:
    """The hash of what a model is asked, with which metrics, and what is right: of every item its requests, with the
    examples before it, and its document."""
    task.set_fewshot_seed(SEED)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    asked = [(each.request_type, each.arguments, each.doc) for each in task.instances]
    scored = (task.VERSION, task.get_config("metric_list"), task.get_config("filter_list"))
    return sha256(json.dumps([asked, scored], sort_keys=True, default=str))


def _load(subject: Subject, folder: Path, options: Options) -> Any:
    from lm_eval.models.huggingface import HFLM

    own = {"device": options.device, "batch_size": options.batch_size, "trust_remote_code": subject.brings_code}
    try:
        return HFLM(pretrained=str(folder), **own)
    except Exception as error:  # whatever transformers, or the code that the folder brings, raises
        raise UserError(f"{subject.name} cannot be loaded by transformers: {first_line(error)}") from error


def _run(model: Any, name: str, task: Any, options: Options, answered: Path) -> Any:
    """The harness's own results, as its `simple_evaluate` sets it up; requests that are in the file `answered` are not
    answered again. It takes seconds more there, to describe the machine."""
    import numpy as np
    import torch
    from lm_eval.api.model import CacheHook, CachingLM
    from lm_eval.evaluator import evaluate

    random.seed(0)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    task.set_fewshot_seed(SEED)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # else it tells of every text that is cut
    cached = CachingLM(model, f"{answered}")
    try:
        # Errors are those of the items, computed where they are shown.
        return evaluate(cached, {"tasks": {name: task}}, limit=options.limit, bootstrap_iters=0)
    except (ValueError, AssertionError) as error:  # of unsafe code and pictures; of answers that do not fit
        cut = f"an answer may be longer than its {model.max_length} tokens" if isinstance(error, AssertionError) else ""
        raise UserError(f"--tasks: {name} cannot be run on this model: {cut or first_line(error)}") from error
    finally:
        model.set_cache_hook(CacheHook(None))
        cached.dbdict.close()


def _metrics(task: Any, values: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> dict[str, TaskMetric]:
    """By metric, and filter where there are several, what the harness found; see `TaskMetric`."""
    found, filters = {}, {sample["filter"] for sample in samples}
    for key, value in values.items():
        metric, _, of = key.partition(",")
        if not of or metric.endswith("_stderr"):
            continue
        aggregation = getattr(task.aggregation().get(metric), "__name__", "mean")
        own = [sample[metric] for sample in samples if sample["filter"] == of]
        is_weighted = aggregation in _WEIGHTED
        pairs = own if is_weighted else [(each, 1.0) for each in own]
        is_plain = all(isinstance(one, int | float) and math.isfinite(one) for pair in pairs for one in pair)
        is_number = isinstance(value, int | float) and math.isfinite(value)
        higher = task.higher_is_better().get(metric)
        found[metric if len(filters) == 1 else key] = TaskMetric(
            value=float(value) if is_number else None,
            better=None if higher is None else "higher" if higher else "lower",
            aggregation=aggregation,
            values=tuple(float(each) for each, _ in pairs) if is_plain else (),
            weights=tuple(float(each) for _, each in pairs) if is_plain and is_weighted else (),
        )
    return found
