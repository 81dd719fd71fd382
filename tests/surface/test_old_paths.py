"""Import paths that version 0.1 told its users keep working, and say what to write instead."""

import subprocess
import sys

import pytest

import tokencredit.integrations.hooks as hooks
from tokencredit.config.recipes import RECIPES


def test_hooks_are_found_under_their_old_path_with_a_warning() -> None:
    import tokencredit.engine.functions as old

    for name in hooks.__all__:
        with pytest.warns(DeprecationWarning, match=rf"tokencredit\.engine\.functions\.{name} has moved: import .*hooks\.{name}"):
            assert getattr(old, name) is getattr(hooks, name)


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    import tokencredit.engine.functions as old

    with pytest.raises(AttributeError, match="no_such_hook"):
        _ = old.no_such_hook


def test_recipes_are_found_under_their_old_path_with_a_warning() -> None:
    sys.modules.pop("tokencredit.recipes", None)
    with pytest.warns(DeprecationWarning, match=r"import tokencredit\.config\.recipes"):
        from tokencredit.recipes import RECIPES as OLD
    assert OLD is RECIPES


@pytest.mark.parametrize(("code", "said"), [
    ("from tokencredit.engine.trl import CreditGRPOTrainer", "trl"),
    ("import tokencredit.engine.verl.plugin", "verl"),
])  # fmt: skip
def test_engine_paths_reach_the_adapter(code: str, said: str) -> None:
    """Neither engine is installed here, so what answers is the adapter's own refusal, not a missing module of ours."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"EngineUnavailableError: {said} is not installed" in done.stderr, done.stderr
