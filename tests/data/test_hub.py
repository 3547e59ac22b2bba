from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets  # type: ignore[import-untyped]
import huggingface_hub
import pytest
from huggingface_hub import errors

from nasgrow.config import DataConfig, Hub
from nasgrow.data import prepare
from nasgrow.data.hub import HubUnreachableError, open_hub
from tests.data.corpora import Log, all_documents, documents, sentences

TEXTS = sentences(40)
COMMIT = "0123456789abcdef" * 2 + "01234567"


class FakeHub:
    """A hub with one dataset, which remembers what it was asked."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = [{"text": text, "id": 1} for text in TEXTS]
        self.commit = COMMIT
        self.down: Exception | None = None
        self.asked: list[tuple[str, str | None]] = []
        self.loaded: list[dict[str, object]] = []
        self.taken = 0

    def dataset_info(
        self, api: object, name: str, *, revision: str | None, timeout: float
    ) -> SimpleNamespace:
        self.asked.append((name, revision))
        assert timeout <= 10
        if self.down is not None:
            raise self.down
        return SimpleNamespace(sha=self.commit)

    def load_dataset(self, name: str, configuration: str | None, **options: object) -> Any:
        self.loaded.append({"name": name, "configuration": configuration, **options})

        def rows() -> Iterator[dict[str, object]]:
            for row in self.rows:
                self.taken += 1
                yield row

        return datasets.IterableDataset(
            datasets.iterable_dataset.ExamplesIterable(lambda: enumerate(rows()), {})
        )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda *args, **options: fake.dataset_info(*args, **options)
    )
    monkeypatch.setattr(datasets, "load_dataset", fake.load_dataset)
    return fake


def config(**changes: Any) -> DataConfig:
    settings = {"source": "hub", "name": "someone/stories", **changes}
    return DataConfig(text=Hub(**settings), validation=0.2, test=0.2)


def hub_error(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    """What the hub's library raises, without the answer of the hub that it wants to be made from."""
    return kind.__new__(kind, "404 Client Error\nmore lines")


# Reading


def test_the_dataset_is_streamed_at_the_commit(hub: FakeHub, tmp_path: Path) -> None:
    corpus = prepare(config(configuration="small", split="dev", revision="v1"), cache=tmp_path)
    assert hub.asked[0] == ("someone/stories", "v1")
    (loaded,) = hub.loaded
    assert Path(str(loaded.pop("cache_dir"))).parent.name == f"{corpus.fingerprint}.partial"
    assert loaded == {
        "name": "someone/stories",
        "configuration": "small",
        "split": "dev",
        "revision": COMMIT,
        "streaming": True,
    }
    assert sorted(all_documents(corpus)) == sorted(TEXTS)
    assert all_documents(corpus) != TEXTS


def test_reading_stops_before_max_bytes(hub: FakeHub, tmp_path: Path) -> None:
    sizes = [len(text.encode()) for text in TEXTS]
    for extra, count in ((0, 10), (sizes[10] - 1, 10), (sizes[10], 11)):
        corpus = prepare(config(max_bytes=sum(sizes[:10]) + extra), cache=tmp_path)
        assert sorted(all_documents(corpus)) == sorted(TEXTS[:count])


def test_a_stream_is_not_read_to_its_end(hub: FakeHub, tmp_path: Path) -> None:
    hub.rows = [{"text": f"{number:09}"} for number in range(100_000)]
    prepare(config(max_bytes=900), cache=tmp_path)
    assert hub.taken < 1000


def test_another_column_is_read(hub: FakeHub, tmp_path: Path) -> None:
    hub.rows = [{"text": None, "story": text} for text in TEXTS]
    assert sorted(all_documents(prepare(config(column="story"), cache=tmp_path))) == sorted(TEXTS)


def test_prepared_data_is_not_loaded_again(hub: FakeHub, tmp_path: Path) -> None:
    first = prepare(config(), cache=tmp_path)
    second = prepare(config(), cache=tmp_path)
    assert first.fingerprint == second.fingerprint
    assert len(hub.loaded) == 1


# What text is


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "someone/else"},
        {"configuration": "small"},
        {"split": "dev"},
        {"column": "story"},
        {"max_bytes": 999_999_999},
        {"revision": "f" * 40},
    ],
)
def test_every_setting_shows(hub: FakeHub, changes: dict[str, Any]) -> None:
    changed, plain = (
        open_hub(Hub(source="hub", **{"name": "someone/stories", **more})) for more in (changes, {})
    )
    assert changed.description != plain.description


def test_the_commit_counts_and_not_its_name(hub: FakeHub) -> None:
    def described(revision: str | None) -> object:
        return open_hub(Hub(source="hub", name="someone/stories", revision=revision)).description

    before = described(None)
    assert described("main") == described(COMMIT) == before
    hub.commit = "f" * 40
    assert described(None) != before
    assert described(COMMIT) == before


def test_a_revision_that_is_a_commit_asks_nobody(hub: FakeHub, tmp_path: Path) -> None:
    prepare(config(), cache=tmp_path)
    hub.asked.clear()
    hub.down = OSError("no network")
    log = Log()
    prepare(config(revision=COMMIT), cache=tmp_path, report=log)
    assert hub.asked == []
    assert log == []


# Errors


def test_a_missing_column_is_named(hub: FakeHub, tmp_path: Path) -> None:
    message = r"^data\.text\.column: hub dataset 'someone/stories' has no column 'body'; it has text, id$"
    with pytest.raises(ValueError, match=message):
        prepare(config(column="body"), cache=tmp_path)
    assert not list((tmp_path / "data").glob("*.partial"))


def test_what_the_library_says_of_a_wrong_split_is_one_line(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise ValueError("Bad split: dev.\nAvailable splits: ['train']")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    message = r"^data\.text: .*'someone/stories' .*: Bad split: dev\. Available splits: \['train'\]$"
    with pytest.raises(ValueError, match=message) as caught:
        prepare(config(split="dev"), cache=tmp_path)
    assert caught.value.__suppress_context__


def test_a_connection_lost_half_way_is_told(hub: FakeHub, tmp_path: Path) -> None:
    class Rows(list[dict[str, object]]):
        def __iter__(self) -> Iterator[dict[str, object]]:
            for number in range(250):
                yield {"text": f"{number}"}
            raise ConnectionError("lost")

    hub.rows = Rows()
    with pytest.raises(
        ValueError, match=r"^data\.text: cannot read .*'someone/stories' after 200 rows: lost$"
    ):
        prepare(config(), cache=tmp_path)
    assert {path.suffix for path in (tmp_path / "data").iterdir()} == {".lock"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (hub_error(errors.RepositoryNotFoundError), r"^data\.text\.name: .*'someone/stories' does not exist"),
        (hub_error(errors.GatedRepoError), r"^data\.text\.name: .*'someone/stories' asks you to accept"),
        (hub_error(errors.RevisionNotFoundError), r"^data\.text\.revision: .*'someone/stories' has no 'v1'$"),
        (
            errors.HFValidationError("no\nname"),
            r"^data\.text\.name: 'someone/stories' is not a dataset's name: no name$",
        ),
    ],
)
def test_what_the_hub_has_not_is_named(hub: FakeHub, tmp_path: Path, error: Exception, message: str) -> None:
    hub.down = error
    with pytest.raises(ValueError, match=message) as caught:
        prepare(config(revision="v1"), cache=tmp_path)
    assert not isinstance(caught.value, HubUnreachableError)
    assert caught.value.__suppress_context__


def test_a_real_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^data\.text\.name: 'a/b/c' is not a dataset's name"):
        open_hub(Hub(source="hub", name="a/b/c"))


# Without the network


@pytest.mark.parametrize("revision", [None, COMMIT])
@pytest.mark.parametrize("cut", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_a_hub_that_is_really_out_of_reach_is_one_line(
    cut: dict[str, str], revision: str | None, tmp_path: Path
) -> None:
    script = (
        "import sys, traceback, pathlib\n"
        "from nasgrow.config import DataConfig, Hub\n"
        "from nasgrow.data import prepare\n"
        f"text = Hub(source='hub', name='roneneldan/TinyStories', revision={revision!r})\n"
        "try:\n"
        "    prepare(DataConfig(text=text), cache=pathlib.Path(sys.argv[1]))\n"
        "except ValueError as error:\n"
        "    print(*traceback.format_exception_only(error), end='')\n"
        "    print(error.__suppress_context__)\n"
    )
    environment = {**os.environ, "USE_TORCH": "0", "HF_HOME": str(tmp_path / "hf"), **cut}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "cache")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    line, suppressed, *more = done.stdout.splitlines()
    assert "hub dataset 'roneneldan/TinyStories' cannot be reached" in line
    assert "`source: files`" in line
    assert "`source: python-stdlib`" in line
    assert (suppressed, more, done.stderr) == ("True", [], "")


def test_what_was_prepared_before_is_used_when_the_hub_is_out_of_reach(hub: FakeHub, tmp_path: Path) -> None:
    other = prepare(config(max_bytes=3000), cache=tmp_path)
    old = prepare(config(), cache=tmp_path)
    os.utime(old.folder / "meta.json", (0, 0))
    hub.commit, hub.rows = "f" * 40, hub.rows[:20]
    new = prepare(config(), cache=tmp_path)
    hub.down = OSError("no network")
    log = Log()
    found = prepare(config(), cache=tmp_path, report=log)
    assert found.fingerprint == new.fingerprint
    assert len({other.fingerprint, old.fingerprint, new.fingerprint}) == 3
    assert log == [f"the hub cannot be reached: using commit {'f' * 40}, prepared before"]
    assert documents(found) == documents(new)


@pytest.mark.parametrize(
    "changes", [{"split": "dev"}, {"revision": "v1"}, {"name": "someone/else"}, {"max_bytes": 999_999_999}]
)
def test_what_was_prepared_with_other_settings_is_not_used(
    hub: FakeHub, tmp_path: Path, changes: dict[str, Any]
) -> None:
    prepare(config(), cache=tmp_path)
    hub.down = OSError("no network")
    with pytest.raises(HubUnreachableError, match=r"cannot be reached \(no network\)"):
        prepare(config(**changes), cache=tmp_path)
    with pytest.raises(HubUnreachableError):
        prepare(config().model_copy(update={"test": 0.1}), cache=tmp_path)
