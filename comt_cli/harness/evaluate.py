"""Language models on tasks of lm-evaluation-harness. Each result is stored and never computed twice.

A model is a folder in Hugging Face's layout, loaded by the harness's own class, so the numbers are those of `lm_eval
--model hf` on that folder. Requests that were answered before an interruption are stored in a file of the harness.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import random
import re
import socket
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from comt_cli.data.published import CONFIG, TOKENIZER, hub_folder, read_object
from comt_cli.data.storage import ProgressCallback, file_lock, first_line, hash_file
from comt_cli.errors import UserError
from comt_cli.exchange import check_source
from comt_cli.files import cache_folder, canonical_json, sha256, write_json
from comt_cli.harness.python_docs import OWN_TASKS, write_tasks
from comt_cli.installing import install_extra
from comt_cli.recipe.problems import closest
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.evaluations import FOLDER, Result, label_of, read_result

_SEED = 1234  # as in the harness, with 0 for `random`
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")  # of a folder; no pickles
_ANSWERS = ("CausalLM", "LMHeadModel", "ForConditionalGeneration")  # in names of architectures
_SCORED_BY = ("doc_to_target", "metric_list", "filter_list", "num_fewshot")


class Subject(NamedTuple):
    """A model to evaluate: display name, hash of its files, folder of results, source, and whether its code may run."""

    name: str
    weights: str
    kept: Path
    source: RunDirectory | Path
    is_trusted: bool = True


def of_run(run: RunDirectory) -> Subject:
    """A run. Raises `UserError` if it is not a language model, is not finished, or has no checkpoint."""
    if (spec := run.spec()).command != "train-lm":
        said = f"{run.shown} is {spec.task.model_kind}, not a language model that continues texts"
        raise UserError(said, "--tasks takes runs of comt train-lm; without --tasks, comt evaluate takes any run.")
    run.result_if_done()
    check_source(str(run.path))
    return Subject(str(run.shown), hash_file(run.checkpoint_file), run.path / FOLDER, run)


def of_folder(folder: Path | None, name: str, *, is_trusted: bool) -> Subject:
    """A folder with config.json and safetensors; None downloads the hub's model `name`. Raises `UserError` if it is not
    available, is not a language model, or contains code and is not trusted."""
    folder = folder or hub_folder(name, _FILES)
    kinds = ", ".join(re.findall(r"\w+", str(read_object(folder / CONFIG).get("architectures") or _ANSWERS)))
    if not any(kind in kinds for kind in _ANSWERS):
        raise UserError(f"{name} holds {kinds}, not a language model that continues texts")
    if not is_trusted and any("auto_map" in read_object(path) for path in folder.glob("*config.json")):
        raise UserError(f"{name} contains Python code", "If you trust it: --trust-remote-code")
    files = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    weights = sha256(canonical_json([(path.name, hash_file(path)) for path in files]))
    return Subject(name, weights, cache_folder() / FOLDER / weights[:16], folder, is_trusted)


def load_tasks(names: Sequence[str], num_fewshot: int | None, progress: ProgressCallback) -> dict[str, Any]:
    """Tasks by name, with their data: comt's, the harness's (for a group every task), and task files by path. Raises
    `UserError` if a task is unknown, or its data is neither stored here nor downloadable."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        said = "--tasks needs lm-evaluation-harness, which is not installed"
        raise UserError(said, install_extra("evaluate")) from None
    own = write_tasks(progress) if {*names} & {*OWN_TASKS} else None
    others = [name for name in names if name not in OWN_TASKS and not Path(name).is_file()]
    manager = TaskManager(include_path=own and str(own), include_defaults=bool(others))  # 15,000 files
    if unknown := [name for name in others if name not in manager.all_tasks]:
        close = closest(unknown[0], [*OWN_TASKS, *manager.all_tasks])
        hint = f"did you mean {close}?" if close else "`lm_eval ls tasks` lists them; a path to a task file works too."
        raise UserError(f"--tasks: there is no task {unknown[0]!r}", hint)
    found: dict[str, Any] = {}
    _go_offline_if_cut_off()
    for name in names:
        _set_seeds()
        try:
            found |= manager.load([name])["tasks"]
        except Exception as error:  # of `datasets`, the hub's client, HTTP libraries, YAML and the task's own code
            far = "Its data is downloaded once: run this with a network, or copy the cache of `datasets`."
            hint = far if isinstance(error, OSError) or "ffline" in str(error) else "See its file."
            raise UserError(f"--tasks: {name} cannot be loaded: {first_line(error)}", hint) from error
    if own is not None:
        progress(f"{' and '.join(OWN_TASKS)} are in {own}, for lm_eval --include_path", 0, None)
    for task in found.values():
        of_task = task.get_config("num_fewshot")  # 0 in a task cannot be overridden, as in lm_eval
        task.set_config("num_fewshot", of_task or 0 if num_fewshot is None or of_task == 0 else num_fewshot)
    return found


def _go_offline_if_cut_off() -> None:
    """Restrict `datasets` to cached data if the hub cannot be resolved. It would retry every file for half a minute."""
    import datasets
    from huggingface_hub import constants

    try:
        _ = getproxies() or socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True


def _set_seeds(task: Any = None) -> None:
    """Set the seeds of the harness's `simple_evaluate`. Tasks may shuffle when they are loaded, and later."""
    from transformers import set_seed

    set_seed(_SEED)
    random.seed(0)
    if task is not None:
        task.set_fewshot_seed(_SEED)


def results(
    subject: Subject, tasks: Mapping[str, Any], limit: int | None, batch_size: int, device: str,
    progress: ProgressCallback,
) -> Iterator[tuple[Result, Path, bool]]:  # fmt: skip
    """Result of every task, its file, and whether the file existed. Raises `UserError` if transformers cannot load the
    model, or a task cannot be run on it; `StorageError`."""
    model, version = None, metadata.version("lm_eval")
    with contextlib.ExitStack() as stack:
        stack.enter_context(file_lock(subject.kept / ".lock", progress, "evaluates this model"))
        for name, task in tasks.items():
            named = {"task": name, "num_fewshot": task.get_config("num_fewshot"), "limit": limit}
            of = {"items": _items_hash(task, limit), "lm_eval": version, "weights": subject.weights}
            path = subject.kept / (re.sub(r"[^\w.-]+", "-", label_of(named)) + ".json")
            if path.exists() and of.items() <= (kept := read_result(path)).items():
                yield kept, path, True
                continue
            model = model or _load(subject, stack, batch_size, device)
            answered = path.with_suffix(f".{sha256(canonical_json(of))[:12]}.answers")
            of_model = {"model": subject.name, "device": device}
            result = named | of | of_model | _run(model, name, task, limit, answered)
            write_json(path, result)
            for stopped in path.parent.glob(f"{path.stem}.*.answers*"):  # also of other weights or data
                stopped.unlink(missing_ok=True)
            yield result, path, False


def _items_hash(task: Any, limit: int | None) -> str:
    """Hash of the requests with their examples, of the right answers, and of the scoring."""
    _set_seeds(task)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    asked = [(each.request_type, each.arguments, each.doc) for each in task.instances]
    scored = (task.VERSION, *map(task.get_config, _SCORED_BY))
    # A task's function is represented by its name: the address in its text differs between processes.
    return sha256(json.dumps([asked, scored], sort_keys=True, default=lambda it: getattr(it, "__qualname__", str(it))))


def _load(subject: Subject, stack: contextlib.ExitStack, batch_size: int, device: str) -> Any:
    from lm_eval.models.huggingface import HFLM

    folder = subject.source
    if isinstance(folder, RunDirectory):
        from comt_cli.exchange.load import load
        from comt_cli.exchange.loaded import LoadedModel
        from comt_cli.library.export import write_huggingface

        run, folder = folder, Path(stack.enter_context(tempfile.TemporaryDirectory())) / subject.weights[:12]
        write_huggingface(load(run.checkpoint_file, LoadedModel), folder, run.result())
        if not (folder / TOKENIZER).is_file():
            said = f"{subject.name}: its tokenizer cannot be exported for transformers"
            raise UserError(said, "sentencepiece, bytes and tokenizer.json can be exported; t5 normalises its text.")
    trusts = subject.is_trusted
    try:
        model = HFLM(pretrained=str(folder), device=device, batch_size=batch_size, trust_remote_code=trusts)
    except Exception as error:  # any error of transformers or of the folder's code
        raise UserError(f"{subject.name} cannot be loaded by transformers: {first_line(error)}") from error
    if model.prefix_token_id is None:
        said = f"{subject.name}: its tokenizer_config.json has no bos_token and no eos_token"
        raise UserError(said, "The harness puts one of them before texts: add one there.")
    return model


def _run(model: Any, name: str, task: Any, limit: int | None, answered: Path) -> Result:
    """Result of a model, without the machine description for which the harness's `simple_evaluate` takes seconds.
    Requests in the file `answered` are not repeated."""
    from lm_eval.api.model import CachingLM
    from lm_eval.evaluator import evaluate

    _set_seeds(task)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # else it reports every text that is cut
    cached = CachingLM(model, str(answered))
    try:  # bootstraps take minutes; tables have their own
        found = evaluate(cached, {"tasks": {name: task}}, limit=limit, bootstrap_iters=0)
    except (ValueError, AssertionError) as error:  # unsafe code and pictures; answers that do not fit
        cut = f"an answer may be longer than its {model.max_length} tokens" if isinstance(error, AssertionError) else ""
        raise UserError(f"--tasks: {name} cannot be run on this model: {cut or first_line(error)}") from error
    finally:
        cached.dbdict.close()
    samples, count = found["samples"][name], len({each["doc_id"] for each in found["samples"][name]})
    return {"version": str(task.VERSION), "count": count, "metrics": _metrics(task, found["results"][name], samples)}


def _metrics(task: Any, values: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> Result:
    """The `metrics` of a result. A metric with an item that is not finite has no `values`."""
    found: Result = {}
    for key, value in values.items():
        metric, _, of = key.partition(",")
        if not of or metric.endswith("_stderr"):
            continue
        kind = getattr(task.aggregation().get(metric), "__name__", "mean")
        own: list[Any] = [each.get(metric) for each in samples if each["filter"] == of]
        is_weighted = kind in ("weighted_perplexity", "bits_per_byte")
        numbers, weights = zip(*own, strict=True) if is_weighted else (own, ())
        numbers = [float(each) for each in numbers] if all(map(_is_finite, numbers)) else []
        has_error = kind == "mean" and len(numbers) > 1
        found[metric if of == "none" else key] = {
            "value": float(value) if _is_finite(value) else None,
            "stderr": statistics.stdev(numbers) / math.sqrt(len(own)) if has_error else None,
            "better": {True: "higher", False: "lower"}.get(task.higher_is_better().get(metric)),
            "aggregation": kind,
            "values": numbers,
            "weights": [*weights],
        }
    return found


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
