"""Optuna is used by its public names only, so that any release of its major version works."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "nasgrow"
LIBRARIES = "optuna", "optuna_dashboard"

PRIVATE_ATTRIBUTES = {
    *("_trial_id", "_study_id", "_storage", "_sampler", "_pruner", "_study", "_cached_frozen_trial"),
    *("_backend", "_thread_local", "_stop_flag", "_directions", "_relative_params", "_suggest"),
    *("_optimize", "_log_completed_trial", "_pop_waiting_trial_id", "_is_multi_objective", "_metric_names"),
    *("_create_new_trial", "_get_prepared_new_trial", "_check_and_set_param_distribution", "_datetime_start"),
}
"""Attributes of Optuna's studies, trials, storages and samplers; ours may have such names on ``self``."""


def private_uses(source: str) -> Iterator[str]:
    """The private names of the libraries that some code imports or reads."""
    tree = ast.parse(source)
    ours = _own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if _is_private(name))
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if _is_private(name) or (node.attr in PRIVATE_ATTRIBUTES and not _is_own(node, ours)):
                yield name
        elif isinstance(node, ast.Constant) and node.value in PRIVATE_ATTRIBUTES:
            yield repr(node.value)  # for getattr


def _is_private(dotted: str) -> bool:
    library, *parts = dotted.split(".")
    return library in LIBRARIES and any(part.startswith("_") and part != "__version__" for part in parts)


def _own_names(tree: ast.Module) -> set[str]:
    """The attributes that classes of a module set on themselves."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    }


def _is_own(node: ast.Attribute, ours: set[str]) -> bool:
    """Whether an attribute is one of our own class, not one that it has from a class of Optuna."""
    return _is_self(node.value) and node.attr in ours


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def test_the_package_uses_no_private_name_of_optuna() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 100
    found = {
        f"{path.relative_to(PACKAGE.parent)}: {name}"
        for path in paths
        for name in private_uses(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "planted",
    [
        "import optuna._callbacks",
        "import optuna.storages._rdb.models as models",
        "from optuna.storages._cached_storage import _CachedStorage",
        "from optuna.study import _tell",
        "from optuna_dashboard import _note",
        "from optuna_dashboard._storage import get_studies",
        "import optuna\noptuna.study._tell._tell_with_warning(study, trial)",
        "def number(trial): return trial._trial_id",
        "class A:\n    def __init__(self, study): self.id = study._study_id",
        "class A(Sampler):\n    def look(self): return self._storage",
        "getattr(study, '_storage')",
    ],
)
def test_this_would_notice_a_private_name(planted: str) -> None:
    assert list(private_uses(planted))


@pytest.mark.parametrize(
    "allowed",
    [
        "import optuna\noptuna.create_study()",
        "from optuna.trial import TrialState as _State",
        "import optuna\nversion = optuna.__version__",
        "class Store:\n    def __init__(self): self._storage = 1\n    def get(self): return self._storage",
        "from nasgrow.study import _private",
    ],
)
def test_what_is_public_or_ours_is_allowed(allowed: str) -> None:
    assert not list(private_uses(allowed))
