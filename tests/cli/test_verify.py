"""The ``nasgrow verify`` command, and wrong arguments of any command."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from nasgrow import verify
from nasgrow.cli.main import cli
from nasgrow.expansions import GrowHidden
from nasgrow.verify import Check
from tests.cli.calling import call

URL = "postgresql://user:Quokka@127.0.0.1:1/name"


@pytest.fixture
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "VARIANTS", {"paper": verify.PAPER})
    monkeypatch.setattr(verify, "KEY_FIXED", {})
    monkeypatch.setattr(verify, "EXPANSIONS", {"hidden": (GrowHidden(40),)})


def test_all_checks_pass_and_are_reported_as_json() -> None:
    result = CliRunner().invoke(cli, ["verify", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["passed"] is True
    pairs = {(check["variant"], check["expansion"]) for check in document["checks"]}
    fixed = {(v, e) for v in verify.KEY_FIXED for e in verify.KEY_EXPANSIONS}
    assert pairs == {(v, e) for v in verify.VARIANTS for e in verify.EXPANSIONS} | fixed
    assert {"key"} == set(verify.EXPANSIONS) - set(verify.KEY_EXPANSIONS)
    for check in document["checks"]:
        assert check["float64"] <= document["limits"]["float64"] == 1e-12
        assert check["float32"] <= document["limits"]["float32"] == 1e-5
        assert check["gradient_after_one"] > 0
        assert check["gradient_after_two"] > 0


@pytest.mark.usefixtures("few_checks")
def test_the_table_names_variant_expansion_and_verdict() -> None:
    result = CliRunner().invoke(cli, ["verify"])
    assert result.exit_code == 0
    assert "paper" in result.stdout
    assert "hidden" in result.stdout
    assert "all 1 checks passed" in result.stdout


@pytest.mark.usefixtures("few_checks")
def test_a_function_that_changes_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(verify.LIMITS, "float64", 0.0)
    result = CliRunner().invoke(cli, ["verify"])
    assert result.exit_code == 1
    assert "changed" in result.stdout
    assert "1 of 1 checks failed" in result.stdout


@pytest.mark.parametrize(
    ("check", "preserved", "alive"),
    [
        (Check("v", "e", 1e-13, 1e-6, 1.0, 1.0, 1.0), True, True),
        (Check("v", "e", 1e-11, 1e-6, 1.0, 1.0, 1.0), False, True),
        (Check("v", "e", 1e-13, 1e-4, 1.0, 1.0, 1.0), False, True),
        (Check("v", "e", float("nan"), 1e-6, 1.0, 1.0, 1.0), False, True),
        (Check("v", "e", 1e-13, 1e-6, 1.0, 0.0, 1.0), True, False),
        (Check("v", "e", 1e-13, 1e-6, float("inf"), 1.0, 1.0), True, False),
    ],
)
def test_what_counts_as_preserved_and_alive(check: Check, preserved: bool, alive: bool) -> None:
    assert check.preserved == preserved
    assert check.alive == alive


@pytest.mark.parametrize("arguments", [["verify", "--yaml"], ["verify", "all"], ["prune"]])
def test_wrong_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nasgrow: ")
    assert arguments[-1] in line


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (["search", "tiny.yaml", URL], None),
        (["storage", "check", "x", URL], None),
        (["status", URL], None),
        (["search", "no-such.yaml", "--storage", URL], None),
        (["status", "no-such.yaml"], URL),
    ],
)
def test_a_password_in_the_wrong_place_is_not_shown(
    arguments: list[str],
    variable: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NASGROW_STORAGE", "")  # the command sets it: afterwards it is as it was
    if variable is not None:
        monkeypatch.setenv("NASGROW_STORAGE_FILE", variable)
    assert call(monkeypatch, *arguments) == 2
    *warned, line = capsys.readouterr().err.splitlines()
    assert "Quokka" not in line
    assert bool(warned) == ("--storage" in arguments), "there it can be used, and others can see it"
    assert not warned or (warned[0].startswith("warning: ") and "Quokka" not in warned[0])
