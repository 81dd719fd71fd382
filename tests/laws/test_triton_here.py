"""Where Triton kernels cannot run, what is missing is named and plain twins are chosen."""

from collections.abc import Iterator

import pytest

from tokencredit import kernels
from tokencredit.kernels import triton_unavailable_reason


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    triton_unavailable_reason.cache_clear()
    yield
    triton_unavailable_reason.cache_clear()


def test_a_missing_compiler_is_named_unless_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: name)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(kernels, "which", lambda name: "/somewhere/clang" if name == "clang" else None)
    assert triton_unavailable_reason() is None
    triton_unavailable_reason.cache_clear()
    monkeypatch.setattr(kernels, "which", lambda name: None)
    assert "install gcc or clang, or set CC" in str(triton_unavailable_reason())
    triton_unavailable_reason.cache_clear()
    monkeypatch.setenv("CC", "tcc")
    assert triton_unavailable_reason() is None


@pytest.mark.parametrize("found", [None, ModuleNotFoundError("triton")])
def test_a_missing_or_old_triton_is_named(monkeypatch: pytest.MonkeyPatch, found: Exception | None) -> None:
    def find(name: str) -> None:
        if found is not None:
            raise found

    monkeypatch.setattr(kernels, "find_spec", find)
    assert "Triton 3.4 or later" in str(triton_unavailable_reason())
