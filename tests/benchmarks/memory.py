"""Memory of workers that share a corpus: is there a copy of it in each?

Prepares 300 MB of text, starts one process and then four that each open it and cut batches all over it, and
prints what the kernel says of them in megabytes, beside a process that opens nothing. A copy of the corpus
would be private and dirty; aim: a few MB more of that than the process that opens nothing. Clean pages are
the file's own in the page cache: private as long as a single process maps them, shared as soon as two do.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from nasgrow.config import DataConfig, Files
from nasgrow.data import batch, prepare

MEGABYTE = 1_000_000
DOCUMENTS = 300
"""Of a megabyte each."""
COUNT, LENGTH = 256, 1023
"""Windows of a batch, and their tokens less one."""
COLUMNS = ("Private_Dirty", "Private_Clean", "Shared_Clean", "Pss")


def write_text(folder: Path) -> None:
    """Documents of random letters."""
    random = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     \n", dtype=np.uint8)
    folder.mkdir()
    for number in range(DOCUMENTS):
        text = letters[random.integers(len(letters), size=MEGABYTE, dtype=np.uint8)]
        (folder / f"{number}.txt").write_bytes(text.tobytes())


def work(config: DataConfig | None, cache: Path, seed: int, parent: Connection) -> None:
    """Open the corpus, read as many tokens as it has twice over, and stay until told to end."""
    if config is not None:
        corpus = prepare(config, cache=cache)
        for step in range(2 * len(corpus.train) // (COUNT * (LENGTH + 1))):
            batch(corpus.train, seed=seed, step=step, count=COUNT, length=LENGTH)
    parent.send("done")
    parent.recv()


def memory(process: int) -> dict[str, float]:
    """What the kernel counts for a process, in megabytes."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    fields = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {name: fields[name] * 1024 / MEGABYTE for name in COLUMNS}


def measure(config: DataConfig | None, cache: Path, count: int) -> list[dict[str, float]]:
    """The memory of each of ``count`` processes, once all have read."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(target=work, args=(config, cache, seed, theirs), daemon=True)
        for seed, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for ours, theirs in pipes:
        theirs.close()  # so that a process that dies ends the wait for it
        ours.recv()
    found = [memory(process.pid) for process in processes if process.pid is not None]
    for ours, _ in pipes:
        ours.send("end")
    for process in processes:
        process.join()
    return found


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "text")
        config = DataConfig(text=Files(source="files", paths=[str(folder / "text" / "*.txt")]))
        cache = folder / "cache"
        corpus = prepare(config, cache=cache)
        size = sum(split.nbytes for split in (corpus.train, corpus.validation, corpus.test)) / MEGABYTE
        print(f"corpus: {size:.0f} MB; of each process, in MB:")
        print("  ".join(["processes", *COLUMNS]))
        rows = {"none open": measure(None, cache, 1)}
        rows |= {f"{count} open": measure(config, cache, count) for count in (1, 4)}
        for what, found in rows.items():
            for values in found:
                print("  ".join([f"{what:>9}", *(f"{values[name]:{len(name)}.1f}" for name in COLUMNS)]))
        idle = rows["none open"][0]["Private_Dirty"]
        extra = max(values["Private_Dirty"] for values in rows["4 open"]) - idle
        print(f"private and dirty beyond the idle: {extra:.1f} MB, {extra / size:.1%} of the corpus")


if __name__ == "__main__":
    main()
