"""Warnings that are errors in this suite: all but those about other people's code, and about the interpreter."""

from __future__ import annotations

import builtins
import types
import warnings
from collections.abc import Callable
from functools import partial

import isolation
import pytest

OF_TORCH = "`torch.jit.script_method` is deprecated. Please switch to `torch.compile` or `torch.export`."
OF_GUARDS = "Guards may run slower on Python 3.13.0. Consider upgrading to Python 3.13.1+."


def warning(module: str, message: str, category: type[Warning], stacklevel: int = 1) -> Callable[[], None]:
    """A function of a module that warns of something, which is filed under the module or, at level 2, its caller."""
    made = types.ModuleType(module)
    code = "import warnings\ndef warn(text, category, level): warnings.warn(text, category, stacklevel=level)"
    exec(code, made.__dict__)
    return partial(made.warn, message, category, stacklevel)


def test_what_a_library_says_of_itself_or_of_the_interpreter_fails_no_test():
    warning("torch.jit._script", OF_TORCH, DeprecationWarning)()
    warning("torch._dynamo.guards", OF_GUARDS, RuntimeWarning)()
    warning("typing_extensions", "will go", PendingDeprecationWarning)()
    warning("transformers", "will be another", FutureWarning)()


@pytest.mark.parametrize("module", ["comt_cli.kernels.products", "comt_cli", "shelf", "__main__", "tarfile"])
def test_what_is_said_of_this_program_and_of_how_it_uses_python_is_an_error(module):
    for category in (DeprecationWarning, FutureWarning, SyntaxWarning, RuntimeWarning, UserWarning):
        for message in ("is deprecated", OF_GUARDS):
            with pytest.raises(category):
                warning(module, message, category)()


def test_what_a_library_says_of_our_call_and_of_wrong_numbers_is_an_error():
    """The overflow of a kernel of ours is seen by Triton's interpreter."""
    with pytest.raises(DeprecationWarning):
        warning("torch.jit._script", OF_TORCH, DeprecationWarning, stacklevel=2)()
    for category in (RuntimeWarning, UserWarning, ResourceWarning):
        with pytest.raises(category):
            warning("triton.runtime.interpreter", "overflow encountered in exp", category)()


def test_the_parsers_warnings_are_told_apart_by_their_paths():
    compile("1 is 1", "/there/site-packages/old/part.py", "exec")
    with pytest.raises(SyntaxError, match="is"):  # what the parser makes of a warning that is an error
        compile("1 is 1", "/there/comt_cli/part.py", "exec")


def test_a_package_is_told_by_its_whole_name_and_this_one_is_never_other_peoples(monkeypatch, tmp_path):
    for name in ("torch", "comt_cli", "torch-2.13.0.dist-info"):
        (tmp_path / "site-packages" / name).mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "site-packages"), str(tmp_path)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rule in isolation.ignored_warnings():
            action, message, category, module = rule.split(":")
            warnings.filterwarnings(action, message, getattr(builtins, category or "Warning"), module)
        warning("torch.nn", "is deprecated", DeprecationWarning)()
        for name in ("torchlike", "comt_cli", "torch_2"):
            with pytest.raises(DeprecationWarning):
                warning(name, "is deprecated", DeprecationWarning)()
