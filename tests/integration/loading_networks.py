"""A program without comt that loads every exported BERT and ResNet below a folder, and writes how far its outputs are
from those of comt. Run with `python -I -S`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

sys.modules["torchvision"] = None  # what is beside torch in a development environment need not fit it
sys.path.append(sys.argv[2])  # of the packages: their .pth files, which may have comt, are not read

import torch  # noqa: E402
import transformers  # noqa: E402


def outputs(folder: Path, inputs: list[torch.Tensor]) -> torch.Tensor:
    config = json.loads((folder / "config.json").read_text())
    (architecture,) = config["architectures"]
    if architecture == "ResNet":
        sys.modules.pop("resnet_comt", None)
        sys.path.insert(0, str(folder))
        module = importlib.import_module("resnet_comt")
        sys.path.remove(str(folder))
        return module.load()(*inputs)
    tokens, *segments = inputs
    model, said = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not said["missing_keys"] | said["unexpected_keys"], said
    mask = tokens != config["pad_token_id"]
    segments = {"token_type_ids": segments[0]} if segments else {}
    return model.eval()(tokens, attention_mask=mask, **segments).logits


@torch.no_grad()
def main(root: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    found = {}
    for name, expected in torch.load(root / "expected.pt").items():
        got = outputs(root / name, expected["inputs"])
        found[name] = ((got - expected["outputs"]).abs().max() / expected["outputs"].abs().max()).item()
    assert not any(module.startswith("comt_cli.") for module in sys.modules)
    (root / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
