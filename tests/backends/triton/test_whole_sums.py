"""Settings of torch that hold for all threads, while several of them ask for whole sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quire.backends.triton.invariant import WHOLE_SUMS

PLAIN, WHOLE = (True, True), (False, False)


class Settings:
    """What torch would keep; every state that another thread could meet is checked."""

    library: str
    values: dict[str, tuple[bool, bool]]

    def __init__(self) -> None:
        self.__dict__["library"] = "cublas"
        self.__dict__["values"] = {}

    def __getattr__(self, name: str) -> bool:
        whole = self.values.get(name.removesuffix("_split_k"), PLAIN) == WHOLE
        return not whole

    def __setattr__(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.check()

    def preferred_blas_library(self, name: str | None = None) -> str:
        if name is not None:
            self.__dict__["library"] = name
            self.check()
        return self.library

    def check(self) -> None:
        assert WHOLE not in self.values.values() or self.library == "cublaslt"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    settings = Settings()
    monkeypatch.setattr(torch.backends.cuda, "matmul", settings)
    monkeypatch.setattr(
        torch.backends.cuda, "preferred_blas_library", settings.preferred_blas_library
    )
    return settings


def test_the_last_one_sets_back_what_the_first_one_found(settings: Settings) -> None:
    with WHOLE_SUMS:
        with WHOLE_SUMS:  # as another thread would be
            pass
        assert settings.library == "cublaslt"
        assert set(settings.values.values()) == {WHOLE}
    assert settings.library == "cublas"
    assert set(settings.values.values()) == {PLAIN}
