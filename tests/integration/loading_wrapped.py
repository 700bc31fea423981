"""A program that has transformers, and nothing of comt: loads every folder of a wrapped model below the one that it is
given, and writes what it found beside them. Run with `python -I -S`."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path

sys.modules["torchvision"] = None  # what is beside torch in a development environment need not fit it
sys.path.append(sys.argv[2])  # of the packages: their .pth files, which may have comt, are not read

import torch  # noqa: E402
import transformers  # noqa: E402


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return ((found.float() - expected.float()).abs().max() / expected.float().abs().max()).item()


def refused_without_trust(auto, folder: Path) -> str:
    try:
        return type(auto.from_pretrained(folder)).__name__
    except ValueError as error:
        return str(error)


def generated(model, tokens: torch.Tensor, **options) -> list[list[int]]:
    ends = {"pad_token_id": 0, "eos_token_id": None, "do_sample": False}
    return model.generate(tokens, max_new_tokens=6, **ends, **options).tolist()


def look(folder: Path, expected: dict, again: Path) -> dict:
    tokens, auto = expected["tokens"], getattr(transformers, expected["auto"])
    model, info = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    output = model.eval()(tokens)[0].detach()
    found = {
        "class": type(model).__name__,
        "off": off(output, expected["output"]),
        "odd": [*info["missing_keys"], *info["unexpected_keys"], *map(str, info["mismatched_keys"])],
        "without_trust": refused_without_trust(auto, folder),
        "bases": [base.__name__ for base in type(model).__mro__],
    }
    if "generated" in expected:
        made = {use: generated(model, tokens[:, :4], use_cache=use) for use in (True, False)}
        found["generates"] = made[True] == made[False] == expected["generated"]
    model.save_pretrained(again)
    back = auto.from_pretrained(again, trust_remote_code=True).eval()
    found["back_off"] = off(back(tokens)[0], output)
    found["copies_off"] = [
        off(other(tokens)[0], output) for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
    ]
    narrow = auto.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16).eval()
    found["narrow_off"] = off(narrow(tokens)[0], output)
    model.train()(tokens)[0].square().mean().backward()
    found["without_gradient"] = [name for name, each in model.named_parameters() if each.grad is None]
    return found


def main(root: Path) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        import comt_cli.layers  # noqa: F401

        raise SystemExit("comt can be imported: this would prove nothing")
    except ImportError:
        pass
    every = torch.load(root / "expected.pt")
    found = {name: look(root / name, expected, root / "again" / name) for name, expected in every.items()}
    (root / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
