"""Language models on tasks of lm-evaluation-harness: each task's result is kept, and none is computed twice.

A model is what its folder in Hugging Face's layout holds, loaded by the harness's own class, so that its numbers are
those of `lm_eval --model hf` on that folder. Requests that were answered before a stop are in a file of the harness's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import random
import socket
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from comt_cli.data.storage import ProgressCallback, file_lock, first_line, hash_file
from comt_cli.errors import UserError
from comt_cli.exchange import no_checkpoint
from comt_cli.files import cache_folder, canonical_json, read_text, sha256, write_json
from comt_cli.harness.python_docs import OWN_TASKS, write_tasks
from comt_cli.installing import install_extra
from comt_cli.recipe.problems import closest
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.evaluations import FOLDER, Result, read_result

SEED = 1234  # of the examples in prompts, as `lm_eval` has it
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")  # of a folder; no pickles
_ANSWERS = ("CausalLM", "LMHeadModel", "ForConditionalGeneration")  # in names of architectures


class Subject(NamedTuple):
    """A model to evaluate: its name for people, the hash of its files, the folder of its results, where it is."""

    name: str
    weights: str
    kept: Path
    source: RunDirectory | Path


def of_run(run: RunDirectory) -> Subject:
    """A run. Raises `UserError` where it is no language model, has not ended, or has no checkpoint."""
    if (spec := run.spec()).command != "train-lm":
        said = f"{run.shown} is {spec.task.model_kind}, not a language model that continues texts"
        raise UserError(said, "--tasks takes runs of comt train-lm; without it comt evaluate takes those of any task.")
    if (state := run.state()) is not RunState.done:
        said = "has diverged" if state is RunState.diverged else "has not ended"
        raise UserError(f"{run.shown} {said}", "Tables show tasks of finished runs alone.")
    if not run.checkpoint_file.is_file():
        raise no_checkpoint(run.path)
    return Subject(str(run.shown), hash_file(run.checkpoint_file), run.path / FOLDER, run)


def of_folder(folder: Path | None, name: str, *, trusts: bool) -> Subject:
    """A folder with config.json and safetensors; None fetches the hub's model `name`, of which without network the
    cached copy is taken. Raises `UserError` where it cannot be had, is no language model, or brings code of its own,
    which only who `trusts` it runs."""
    if folder is None:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, allow_patterns=list(_FILES)))
        except Exception as error:  # the hub's client raises its own, the HTTP library's and the system's errors
            said = f"there is no run or folder {name}, and it cannot be had from the Hugging Face hub"
            raise UserError(f"{said}: {first_line(error)}", "Without network, give a downloaded folder.") from None
    files = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    try:
        kinds = json.loads(read_text(folder / "config.json")).get("architectures") or ["CausalLM"]
        brings_code = any('"auto_map"' in read_text(path) for path in files if path.name.endswith("config.json"))
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{name} has no configuration that can be read: {first_line(error)}") from None
    if not any(kind in each for kind in _ANSWERS for each in kinds):
        raise UserError(f"{name} holds {', '.join(kinds)}, not a language model that continues texts")
    if brings_code and not trusts:
        raise UserError(f"{name} brings Python code of its own", "If you trust it: --trust-remote-code")
    weights = sha256(canonical_json([(path.name, hash_file(path)) for path in files]))
    return Subject(name, weights, cache_folder() / FOLDER / weights[:16], folder)


def load_tasks(names: Sequence[str], num_fewshot: int | None, progress: ProgressCallback) -> dict[str, Any]:
    """The tasks by name, with their data: comt's own, the harness's, and task files by path; of a group every task.
    Raises `UserError` where one is not known, or its data is not here and cannot be fetched."""
    if not any(os.environ.get(key) for key in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy")):
        try:
            socket.getaddrinfo("huggingface.co", 443)
        except OSError:  # then `datasets` would ask for every file again and again, half a minute long
            os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        said = "--tasks needs lm-evaluation-harness, which is not installed"
        raise UserError(said, install_extra("evaluate")) from None
    own = write_tasks(progress) if {*names} & {*OWN_TASKS} else None
    others = [name for name in names if name not in OWN_TASKS and not Path(name).is_file()]
    manager = TaskManager(include_path=own and str(own), include_defaults=bool(others))  # 15,000 files
    found: dict[str, Any] = {}
    for name in names:
        if name in others and name not in manager.all_tasks:
            close = closest(name, [*OWN_TASKS, *manager.all_tasks])
            hint = f"did you mean {close}?" if close else "`lm_eval ls tasks` lists them; a path to a task file is one."
            raise UserError(f"--tasks: there is no task {name!r}", hint)
        try:
            found |= manager.load([name])["tasks"]
        except Exception as error:  # of `datasets`, the hub's client, HTTP libraries, YAML and the task's own code
            far = "Its data is fetched once: run this where there is a network, or copy the cache of `datasets` here."
            hint = far if isinstance(error, OSError) or "ffline" in str(error) else "See its file."
            raise UserError(f"--tasks: {name} cannot be loaded: {first_line(error)}", hint) from error
    if own is not None:
        progress(f"{' and '.join(OWN_TASKS)} are in {own}, for lm_eval --include_path", 0, None)
    for task in found.values():
        of_task = task.get_config("num_fewshot")  # none is the task's last word, as in lm_eval
        task.set_config("num_fewshot", of_task or 0 if num_fewshot is None or of_task == 0 else num_fewshot)
    return found


def results(
    subject: Subject, tasks: Mapping[str, Any], limit: int | None, batch_size: int, device: str
) -> Iterator[tuple[Result, Path, bool]]:
    """The result of every task, the file that keeps it, and whether it was there before. Raises `UserError` where
    transformers cannot load the model, or a task cannot be run on it; `StorageError`."""
    version, model = metadata.version("lm_eval"), None
    with contextlib.ExitStack() as stack:
        stack.enter_context(file_lock(subject.kept / ".lock"))
        for name, task in tasks.items():
            items = _items_hash(task, limit)
            key = sha256(f"{items} {version} {subject.weights}")[:12]
            path = subject.kept / f"{name.replace('/', '-')}-{key}.json"
            if is_there := path.exists():
                yield read_result(path), path, is_there
                continue
            model = model or _load(subject, stack, batch_size, device)
            answered = path.with_suffix(".answers")
            values, samples = _run(model, name, task, limit, answered)
            of_task = {"task": name, "version": str(task.VERSION), "num_fewshot": task.get_config("num_fewshot")}
            of_items = {"items": items, "count": len({each["doc_id"] for each in samples}), "limit": limit}
            of_model = {"model": subject.name, "weights": subject.weights, "device": device, "lm_eval": version}
            result: Result = {**of_task, **of_items, **of_model, "metrics": _metrics(task, values, samples)}
            write_json(path, result)
            answered.unlink(missing_ok=True)
            yield result, path, is_there


def _items_hash(task: Any, limit: int | None) -> str:
    """The hash of what a model is asked, with the examples before it, what is right, and how that is scored."""
    task.set_fewshot_seed(SEED)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    asked = [(each.request_type, each.arguments, each.doc) for each in task.instances]
    scored = (task.VERSION, task.get_config("metric_list"), task.get_config("filter_list"))
    # A function of the task's own is its name: the address in its text is another one in every process.
    return sha256(json.dumps([asked, scored], sort_keys=True, default=lambda it: getattr(it, "__qualname__", str(it))))


def _load(subject: Subject, stack: contextlib.ExitStack, batch_size: int, device: str) -> Any:
    """The harness's model, of a run from a folder that goes with the stack. Its code was made here, or is trusted."""
    from lm_eval.models.huggingface import HFLM

    folder = subject.source
    if isinstance(folder, RunDirectory):
        from comt_cli.exchange.load import load
        from comt_cli.exchange.loaded import LoadedModel
        from comt_cli.library.export import write_huggingface

        run, folder = folder, Path(stack.enter_context(tempfile.TemporaryDirectory())) / subject.weights[:12]
        write_huggingface(load(run.checkpoint_file, LoadedModel), folder, run.result())
        if not (folder / "tokenizer.json").is_file():
            said = f"{subject.name}: its tokenizer cannot be written for transformers"
            raise UserError(said, "Those of data.tokenizer sentencepiece and bytes can; t5's normalises its text.")
    try:
        model = HFLM(pretrained=str(folder), device=device, batch_size=batch_size, trust_remote_code=True)
    except Exception as error:  # whatever transformers, or the code that the folder brings, raises
        raise UserError(f"{subject.name} cannot be loaded by transformers: {first_line(error)}") from error
    if model.prefix_token_id is None:
        said = f"{subject.name}: its tokenizer_config.json names no token that begins or ends a text"
        raise UserError(said, "The harness puts one before texts: name its bos_token or eos_token there.")
    return model


def _run(model: Any, name: str, task: Any, limit: int | None, answered: Path) -> tuple[dict[str, Any], list[Any]]:
    """Values by metric and filter, and what is known of every item: the harness's own, set up as its `simple_evaluate`
    does, which also describes the machine, for seconds. Requests in the file `answered` are not answered again."""
    import numpy as np
    import torch
    from lm_eval.api.model import CachingLM
    from lm_eval.evaluator import evaluate

    random.seed(0)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    task.set_fewshot_seed(SEED)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # else it tells of every text that is cut
    cached = CachingLM(model, str(answered))
    try:  # bootstraps of errors take minutes; tables have their own
        found = evaluate(cached, {"tasks": {name: task}}, limit=limit, bootstrap_iters=0)
    except (ValueError, AssertionError) as error:  # of unsafe code and pictures; of answers that do not fit
        cut = f"an answer may be longer than its {model.max_length} tokens" if isinstance(error, AssertionError) else ""
        raise UserError(f"--tasks: {name} cannot be run on this model: {cut or first_line(error)}") from error
    finally:
        cached.dbdict.close()
    return found["results"][name], found["samples"][name]


def _metrics(task: Any, values: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> Result:
    """The `metrics` of a result. What has items without a finite number has no `values`."""
    found: Result = {}
    for key, value in values.items():
        metric, _, of = key.partition(",")
        if not of or metric.endswith("_stderr"):
            continue
        aggregation = getattr(task.aggregation().get(metric), "__name__", "mean")
        own: list[Any] = [each.get(metric) for each in samples if each["filter"] == of]
        is_weighted = aggregation in ("weighted_perplexity", "bits_per_byte")
        pairs = own if is_weighted else [(each, 1) for each in own]
        is_plain = all(isinstance(each, int | float) and math.isfinite(each) for each, _ in pairs)
        found[metric if of == "none" else key] = {
            "value": value if isinstance(value, int | float) and math.isfinite(value) else None,
            "stderr": statistics.stdev(own) / math.sqrt(len(own))
            if is_plain and aggregation == "mean" and len(own) > 1 else None,
            "better": {True: "higher", False: "lower"}.get(task.higher_is_better().get(metric)),
            "aggregation": aggregation,
            "values": [float(each) for each, _ in pairs] if is_plain else [],
            "weights": [each for _, each in pairs] if is_weighted else [],
        }  # fmt: skip
    return found
