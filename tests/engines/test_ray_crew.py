"""What a crew asks Ray for and what it refuses, on clusters that are described but not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from nasgrow.cli.launch import Engine
from nasgrow.engines import ray as engine
from nasgrow.engines.crew import REPLACEMENTS, Deaths
from nasgrow.engines.ray import RayCrew
from nasgrow.engines.standing import warnings_in
from nasgrow.search.config import Resources, thread_count
from nasgrow.search.ledger import KINDS, Ledger
from nasgrow.search.study import open_study
from tests.search.studies import write_study

pytest.importorskip("ray", reason="Ray is not installed: pip install 'nasgrow[ray]'")
from ray.exceptions import NodeDiedError, OutOfMemoryError

Node = dict[str, Any]


class Cluster:
    """Nodes as Ray describes them, and what Ray was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.nodes: list[Node] = []
        self.asked: dict[str, Any] = {}
        self.orders: list[Mapping[str, Any]] = []
        self.url = "postgresql://there/study"
        self.grows = False
        self._folder = folder
        monkeypatch.setattr(engine, "_nodes", lambda: self.nodes)
        monkeypatch.setattr(engine, "where", lambda storage: self.url)
        monkeypatch.setattr("ray.remote", self._remote)

    def join(self, host: str = "one", **resources: float) -> None:
        self.nodes.append({"NodeManagerHostname": host, "Resources": resources})

    def crew(self, most: int | None = None, **resources: float) -> RayCrew:
        study = SimpleNamespace(config=SimpleNamespace(name="tiny"))
        ledger = SimpleNamespace(
            study=study, storage=None, offers=lambda kinds: True, ended=lambda kinds: False
        )
        return RayCrew(
            cast(Ledger, ledger),
            self._folder,
            (),
            Resources(**resources),
            lambda order: {},
            {},
            most,
            self.grows,
        )

    def _remote(self, **options: Any) -> Any:
        self.asked = options
        return lambda task: SimpleNamespace(remote=self._submit)

    def _submit(self, order: Mapping[str, Any]) -> int:
        self.orders.append(order)
        return len(self.orders)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    return Cluster(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("resources", "room", "asked"),
    [
        # By default one core and, as the cluster has GPUs, one of them.
        ({}, 2 + 1, {"num_cpus": 1, "num_gpus": 1, "max_calls": 1}),
        ({"gpus": 0}, 4 + 8 + 2, {"num_cpus": 1, "num_gpus": 0, "max_calls": 0}),
        ({"gpus": 0, "cpus": 0.1}, 40 + 80 + 20, {"num_cpus": 0.1}),
        ({"gpus": 0, "cpus": 3}, 1 + 2, {"num_cpus": 3}),
        # Once on each GPU: what is left of two is not on one.
        ({"gpus": 0.6}, 2 + 1, {"num_gpus": 0.6, "max_calls": 1}),
        ({"gpus": 0.1}, 4 + 8, {"num_gpus": 0.1}),
        ({"gpus": 0.5, "gigabytes": 3}, 2 + 2, {"num_gpus": 0.5, "memory": 3e9}),
    ],
)
def test_there_is_room_for_what_nodes_have(
    cluster: Cluster, resources: dict[str, float], room: int, asked: dict[str, float]
) -> None:
    cluster.join(CPU=4.0, GPU=2.0, memory=8e9)
    cluster.join(CPU=8.0, GPU=1.0, memory=64e9)
    cluster.join(CPU=2.0, memory=2e9)
    crew = cluster.crew(None, **resources)
    assert crew.size == room
    crew.start()
    assert asked.items() <= cluster.asked.items()
    assert ("memory" in cluster.asked) == ("gigabytes" in resources)
    crew._fill()
    assert [order["index"] for order in cluster.orders] == list(range(room))
    assert {order["gpu"] for order in cluster.orders} == {resources.get("gpus") != 0}


def test_a_crew_grows_with_its_cluster_and_asks_for_the_same_as_before(cluster: Cluster) -> None:
    cluster.join(CPU=1.0)
    crew = cluster.crew()
    crew.start()
    assert cluster.asked["num_gpus"] == 0
    crew._fill()
    cluster.join(CPU=2.0, GPU=1.0)
    crew._fill()
    assert [order["gpu"] for order in cluster.orders] == [False] * 3, "as there was none"


@pytest.mark.parametrize("workers", [None, 4])
@pytest.mark.parametrize(
    ("resources", "line"),
    [
        ({"cpus": 16}, "resources.cpus: a trial needs 16, and the largest node has 8"),
        ({"gpus": 0.5}, "resources.gpus: a trial needs 0.5, and the largest node has 0"),
        ({"gigabytes": 6.5}, "resources.gigabytes: a trial needs 6.5, and the largest node has 4"),
        ({"cpus": 8, "gigabytes": 4}, "resources: a trial needs cpus 8, gigabytes 4, and no node has all"),
    ],
)
def test_what_no_node_has_is_refused_however_many_workers_are_asked_for(
    cluster: Cluster, workers: int | None, resources: dict[str, float], line: str
) -> None:
    cluster.join(CPU=8.0, memory=2e9)
    cluster.join(CPU=2.0, memory=4e9)
    with pytest.raises(ValueError, match=f"^{line}.*: ask for less, or let a node that has it join first$"):
        cluster.crew(workers, **resources).start()


def test_more_workers_may_be_asked_for_than_there_is_room(cluster: Cluster) -> None:
    cluster.join(CPU=2.0)
    crew = cluster.crew(64)
    crew.start()
    assert crew.size == 64, "an autoscaler sees what waits"


def test_a_cluster_without_nodes_is_refused_unless_they_may_join(cluster: Cluster, tmp_path: Path) -> None:
    line = "resources.cpus: a trial needs 1, and the largest node has 0: "
    for workers, cluster.grows in ((4, False), (None, True)):
        with pytest.raises(ValueError, match=f"^{line}ask for less"):
            cluster.crew(workers).start()
    assert not warnings_in(tmp_path)
    crew = cluster.crew(4)
    crew.start()
    assert warnings_in(tmp_path) == [f"warning: {line}waiting for a node to join that has it"]
    crew._fill()
    assert len(cluster.orders) == 4, "an autoscaler sees what waits"


def test_a_task_that_runs_out_of_memory_counts_as_one_that_died(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.join(CPU=1.0)
    crew = cluster.crew()
    crew.start()
    monkeypatch.setattr("ray.get", lambda reference: {"did": "died", "line": "it ran out"})
    deaths = Deaths(lambda: 0)
    for _ in range(REPLACEMENTS):
        crew._fill()
        assert crew._settle(len(cluster.orders), deaths, asked=False) == "died"
    crew._fill()
    assert crew._settle(len(cluster.orders), deaths, asked=True) == "died"
    crew._fill()
    with pytest.raises(ValueError, match=r"^workers keep dying: it ran out$"):
        crew._settle(len(cluster.orders), deaths, asked=False)


@pytest.mark.parametrize(
    ("address", "workers", "resources", "threads"),
    [
        (None, None, {}, 1),
        (None, 2, {}, 3),
        ("local", 1, {}, 6),
        (None, 2, {"cpus": 2}, 2),
        ("10.0.0.1:6379", 2, {}, 1),
        ("10.0.0.1:6379", 2, {"cpus": 2.5}, 2),
    ],
)
def test_on_one_machine_tasks_have_the_threads_of_local_workers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str | None,
    workers: int | None,
    resources: dict[str, float],
    threads: int,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("nasgrow.search.config.core_count", lambda: 6)
    monkeypatch.setattr(engine, "connect", lambda address: None)
    study, folder = open_study(write_study(tmp_path, resources=resources))
    ledger = cast(Ledger, SimpleNamespace(study=study))

    def threads_of_a_task() -> int:
        crew = Engine("ray", address, workers).hire(ledger, folder, KINDS)
        assert isinstance(crew, RayCrew)
        return int(crew.order["threads"])

    assert threads_of_a_task() == threads
    alike = Engine("local", None, workers).hire(ledger, folder, KINDS)
    here = address in (None, "local")
    assert not here or thread_count(study.config.resources, alike.size) == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert threads_of_a_task() == (5 if here else threads)


def watch(crew: RayCrew) -> bool:
    """Watch a crew whose trials never end, and which nobody stops."""
    crew.start()
    return crew.watch(lambda: 0, lambda: None, lambda: False)


def test_sqlite_is_refused_once_another_machine_has_joined(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.url = "sqlite:///runs/tiny/study.db"
    cluster.join("one", CPU=1.0)
    cluster.join("one", CPU=1.0)

    def wait(tasks: list[int], **_: object) -> tuple[list[int], list[int]]:
        assert len(cluster.nodes) < 4, "it was not seen"
        cluster.join("another", CPU=1.0)
        return [], tasks

    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.cancel", lambda task, force: None)
    with pytest.raises(
        ValueError, match=r"^storage: SQLite serves one machine, and the cluster has 2: give "
    ):
        watch(cluster.crew())
    assert len(cluster.orders) == 2, "two nodes of one machine are served"


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (
            OutOfMemoryError("killed"),
            "a node ran out of memory: let resources.gigabytes say what a trial needs",
        ),
        (NodeDiedError("the node is gone"), "the node is gone"),
    ],
)
def test_tasks_that_keep_dying_end_the_crew_with_what_kills_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fault: Exception, line: str
) -> None:
    def get(task: int) -> None:
        raise fault

    monkeypatch.setattr("ray.wait", lambda tasks, **_: (tasks, []))
    monkeypatch.setattr("ray.cancel", lambda task, force: None)
    monkeypatch.setattr("ray.get", get)
    cluster.join(CPU=2.0)
    with pytest.raises(ValueError, match=f"^workers keep dying: {line}$"):
        watch(cluster.crew())
    assert len(cluster.orders) > REPLACEMENTS, "the first who died were replaced"
