"""The checks of `comt doctor` that import more of the program: requirements and cache of data sets, available kernels,
and the choices of `train.kernels: auto`."""

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

PACKAGES = ("babel", "sacrebleu", "sacremoses")  # for translation


def check_data(name: str) -> Finding:
    """Check the requirements of a kind of data, and its sets in the cache."""
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
    """Check that this Python includes its library's sources and help topics, the offline text."""
    has_sources = any(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    is_whole = has_sources and find_spec("pydoc_data.topics") is not None
    wrong = "this Python lacks sources or topics of its library: python-docs is smaller, so numbers differ"
    fix = "Use a Python with its whole library (from python.org or pyenv), or --set data.corpus=files:GLOB."
    text = "python-docs, python-source and files:GLOB need no network; c4, openwebtext and hf:NAME are read once"
    return judge(text, (not is_whole, "warn", wrong, fix))


def _images() -> Finding:
    """Check for torchvision, which reads CIFAR and ImageNet; glyphs are rendered without it."""
    try:
        pictures.torchvision_datasets()
    except UserError as error:
        text = f"glyphs10 and glyphs100 (rendered here); not cifar10, cifar100 and imagenet: {error.message}"
        return Finding("warn", text, error.hint)
    return Finding("ok", "glyphs10 and glyphs100 (rendered here); cifar10, cifar100 and imagenet through torchvision")


def _pairs() -> Finding:
    """Check the packages that make and score the sentences of almanac; their versions decide both."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    versions = [f"{package} {metadata.version(package)}" for package in PACKAGES if package not in missing]
    text, fix = ", ".join(["almanac (generated here)", *versions]), install_package(*missing)
    return judge(text, (bool(missing), "fail", f"missing: {', '.join(missing)}", fix))


def _captions() -> Finding:
    """Report whether METEOR and SPICE, which need Java and a package, are available. Training needs neither."""
    reasons = {SCORES[key][0]: why_missing(key) for key in JAVA_METRICS}
    parts = [name if reason is None else f"no {name} ({reason})" for name, reason in reasons.items()]
    if any(reasons.values()):
        parts.append(f"to install them: apt-get install default-jre; {install_extra('caption-metrics')}")
    return Finding("ok", f"scenes (rendered here); {', '.join(parts)}")


KINDS: dict[str, tuple[Callable[[], Finding], str, type[Manifest]]] = {
    "corpora": (_corpora, "corpora", TextManifest),
    "images": (_images, "images", ImageManifest),
    "parallel text": (_pairs, "pairs", PairManifest),
    "captions": (_captions, "captions", CaptionManifest),
}
"""For each kind of data: the check of its requirements, the cache folder of its sets, and their manifest."""


def check_kernels() -> Finding:
    """List the kernels that `auto` chooses on each device for the gates and the loss of a typical language model."""
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
            choices = [f"{', '.join(ops)} {chosen}" for chosen, ops in by_choice.items()]
            lines.append(f"{device}, {of}: {'; '.join(choices)}")
    lines.append(f"cpu, fp32 products: {f'PyTorch ({kept})' if kept else 'oneDNN'}")
    lines.append(f"cpu, bf16 attention of up to {MOST_TOKENS} tokens: {attention_form('cpu', torch.bfloat16)}")
    damaged = [str(path) for path in (*measurements(FILE)[1], *measurements(STEP_FILE)[1])]
    again = "Delete the file and measure again: comt bench kernels, comt bench step."
    return judge("\n".join(lines), (bool(damaged), "warn", f"damaged: {', '.join(damaged)}", again))
