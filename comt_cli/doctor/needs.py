"""The checks of `comt doctor` that need more of the program: for data sets, what their kind needs on this machine and
whether the cache is whole; for kernels, which there are, and which `train.kernels: auto` would take."""

from __future__ import annotations

import itertools
import sysconfig
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from comt_cli.data.captions.settings import CaptionManifest
from comt_cli.data.images import pictures
from comt_cli.data.images.settings import ImageManifest
from comt_cli.data.pairs.settings import PairManifest
from comt_cli.data.prepare import MANIFEST, Manifest
from comt_cli.data.text.settings import TextManifest
from comt_cli.doctor import Finding, judge
from comt_cli.errors import UserError
from comt_cli.files import cache_folder
from comt_cli.installing import install_extra, install_package
from comt_cli.scoring.captions import JAVA_METRICS, why_missing
from comt_cli.tasks.captioning import SCORES
from comt_cli.tasks.settings.language import LLAMA_SIZES

PACKAGES = ("babel", "sacrebleu", "sacremoses")  # what translation needs beside a network


def check_data(name: str) -> Finding:
    """The needs of a kind of data here, its sets in the cache, and those whose list of files cannot be read."""
    needs, place, manifest = KINDS[name]
    found, damaged = needs(), []
    folders = sorted(path.parent for path in (cache_folder() / place).glob(f"*/{MANIFEST}"))
    for folder in folders:
        try:
            manifest.read(folder, folder.name.partition("-")[0])
        except UserError:
            damaged.append(str(folder))
    text = f"{name}: {found.text}; sets in the cache: {len(folders) - len(damaged)}"
    if not damaged:
        return Finding(found.status, text, found.fix)
    fixes = [*([found.fix] if found.fix else []), f"rm -r {' '.join(damaged)}; then run the recipe again"]
    status = "warn" if found.status == "ok" else found.status
    return Finding(status, f"{text}; damaged: {', '.join(damaged)}", " ".join(fixes))


def _corpora() -> Finding:
    """Without network there is text to train on: this Python carries its library's sources and its topics."""
    has_sources = any(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    is_whole = has_sources and find_spec("pydoc_data.topics") is not None
    wrong = "this Python lacks sources or topics of its library: python-docs is smaller, and numbers will differ"
    fix = "Use a Python with its whole library (from python.org or pyenv), or --set data.corpus=files:GLOB."
    text = "without network python-docs, python-source and files:GLOB; c4 and openwebtext need it once"
    return judge(text, (not is_whole, "warn", wrong, fix))


def _images() -> Finding:
    """Without network there are letters to train on; CIFAR and ImageNet need torchvision, and their files once."""
    try:
        pictures.torchvision_datasets()
    except UserError as error:
        text = f"glyphs10 and glyphs100, drawn here; no cifar10, cifar100 and imagenet: {error.message}"
        return Finding("warn", text, error.hint)
    return Finding("ok", "glyphs10 and glyphs100, drawn here")


def _pairs() -> Finding:
    """Sentences of almanac are made and scored with packages of other projects, whose versions decide both."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    versions = [f"{package} {metadata.version(package)}" for package in PACKAGES if package not in missing]
    text, fix = ", ".join(["almanac, made here", *versions]), install_package(*missing)
    return judge(text, (bool(missing), "fail", f"missing: {', '.join(missing)}", fix))


def _captions() -> Finding:
    """Scenes are drawn and scored here; METEOR and SPICE, which no training needs, take Java and a package."""
    reasons = {SCORES[key][0]: why_missing(key) for key in JAVA_METRICS}
    said = [name if reason is None else f"no {name} ({reason})" for name, reason in reasons.items()]
    if any(reasons.values()):
        said.append(f"to install them: apt-get install default-jre; {install_extra('caption-metrics')}")
    return Finding("ok", f"scenes, drawn here; {', '.join(said)}")


KINDS: dict[str, tuple[Callable[[], Finding], str, type[Manifest]]] = {
    "corpora": (_corpora, "corpora", TextManifest),
    "images": (_images, "images", ImageManifest),
    "parallel text": (_pairs, "pairs", PairManifest),
    "captions": (_captions, "captions", CaptionManifest),
}
"""Whether this machine has what a kind needs, the cache's folder of its sets, and their record."""


def check_kernels() -> Finding:
    """How gates of a typical language model, and its loss, would be computed on each device here, and why."""
    import torch

    from comt_cli.kernels import choice, products
    from comt_cli.kernels.attend import MOST_TOKENS, attention_form
    from comt_cli.kernels.measurements import FILE, STEP_FILE, measurements

    obstacle, kept = choice.cpu_obstacle(may_build=False), products.obstacle()
    parts = ["C++ kernels compiled when first used" if obstacle is None else f"no C++ kernels ({obstacle})"]
    for name in ("triton", "liger-kernel"):
        version = choice.version_of(name)
        parts.append(f"{name} {version}" if version else f"no {name}")
    lines = ["; ".join(parts)]
    gpus = {torch.cuda.get_device_name(index): index for index in reversed(range(torch.cuda.device_count()))}
    model, gates = LLAMA_SIZES["130m"], choice.Gates(channel=True, scalar=True, rank=8)
    widths: dict[choice.Op, int] = {"heads": 3 * model.width, "swiglu": 2 * model.ffn_width, "add_norm": model.width}
    for device in map(torch.device, [*(f"cuda:{index}" for index in sorted(gpus.values())), "cpu"]):
        for dtype, compiled in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            by_choice: dict[choice.Choice, list[str]] = {}
            by_choice[choice.choose_loss("auto", device, dtype, may_build=False)] = ["loss"]
            for op, width in widths.items():
                chosen = choice.choose(op, "auto", device, dtype, width, gates, compiled=compiled, may_build=False)
                by_choice.setdefault(chosen, []).append(op)
            of = f"{str(dtype).removeprefix('torch.')}{' compiled' if compiled else ''}"
            said = [f"{', '.join(ops)} {chosen}" for chosen, ops in by_choice.items()]
            lines.append(f"{device}, {of}: {'; '.join(said)}")
    lines.append(f"cpu, fp32 products: {f'PyTorch ({kept})' if kept else 'oneDNN'}")
    lines.append(f"cpu, bf16 attention of up to {MOST_TOKENS} tokens: {attention_form('cpu', torch.bfloat16)}")
    damaged = [str(path) for path in (*measurements(FILE)[1], *measurements(STEP_FILE)[1])]
    again = "Delete it and measure anew: comt bench kernels, comt bench step."
    return judge("\n".join(lines), (bool(damaged), "warn", f"damaged: {', '.join(damaged)}", again))
