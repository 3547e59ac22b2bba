"""What a report says and shows, section by section; what the data cannot show is left out, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure

from nasgrow.flops import parameter_count
from nasgrow.report import words
from nasgrow.report.figures.compute import compute_saved, loss_over_compute
from nasgrow.report.figures.contenders import confirmations, tuning
from nasgrow.report.figures.effects import effects, importance, marginal
from nasgrow.report.figures.grown_first import heat_map
from nasgrow.report.figures.progress import pareto, search_progress
from nasgrow.report.figures.recovery import recovery
from nasgrow.report.figures.timeline import timeline
from nasgrow.report.integrity import LIMIT, Integrity
from nasgrow.report.load import Records, Trial
from nasgrow.report.page import Bullets, Picture, Section, Table, Text, Tile, Tiles
from nasgrow.report.ranking import Ranking, contender
from nasgrow.report.verdict import Verdict

TOP = 10
"""Rows of the leaderboard."""
CURVES, LINES = 3, 5
"""Schedules in figures of curves, and in the timeline."""
ENOUGH = 8
"""Finished trials below which effects of parameters would be noise."""
KINDS = {"search": "search", "baseline": "baselines", "confirmation": "confirmations"}


@dataclass(frozen=True)
class Findings:
    """A study, read and judged."""

    records: Records
    ranking: Ranking
    verdict: Verdict
    integrity: Integrity


@dataclass
class Composer:
    """Writes the sections of a report, and draws the figures that they show."""

    found: Findings
    figures: dict[str, Figure]

    def sections(self) -> Iterator[Section]:
        """All sections, in order."""
        yield self.verdict()
        yield Section("What weakens this", [self.weaknesses()])
        yield self.confirmations()
        yield self.compute()
        yield self.schedules()
        yield self.baselines()
        yield self.matters()
        yield self.search()
        yield self.events()
        yield self.integrity()
        yield self.files()

    def picture(self, name: str, figure: Figure, caption: str) -> Picture:
        """Show a figure."""
        self.figures[name] = figure
        return Picture(name, caption)

    def verdict(self) -> Section:
        """The answer, its numbers, and what both sides cost."""
        verdict = self.found.verdict
        section = Section("Verdict")
        if verdict.comparisons:
            section.blocks.append(Tiles(_tiles(verdict)))
        section.blocks += [Text(sentence) for sentence in verdict.sentences]
        if verdict.ours is not None:
            sides = [("the schedule", verdict.ours)]
            sides += [(comparison.rival, comparison.theirs) for comparison in verdict.comparisons]
            columns = ["", f"{verdict.split} loss", "seeds", "learning rate", "parameters", "tokens"]
            rows = [
                [
                    name,
                    words.loss(one.mean),
                    str(len(one.losses)),
                    f"{one.trial.record.learning_rate:.3g}",
                    words.count(one.trial.record.parameter_count),
                    words.count(one.per_run("tokens")),
                    words.compute(one.per_run("charged")),
                    words.duration(one.per_run("seconds")),
                ]
                for name, one in sides
            ]
            columns += ["compute", "wall-clock"]
            section.blocks.append(Table(columns, rows, frozenset({""})))
            section.blocks.append(
                Text(
                    "Tokens, compute and wall-clock are those of one run; runs trained side by side.",
                    quiet=True,
                )
            )
        return section

    def weaknesses(self) -> Bullets | Text:
        """All that a reader must know before believing the verdict."""
        found = self.found.integrity.weaknesses
        return Bullets(found) if found else Text("Nothing that the records show.")

    def confirmations(self) -> Section:
        """Fresh seeds on the test split."""
        section = Section("Confirmation")
        confirmed = self.found.ranking.confirmed
        if not confirmed:
            section.blocks.append(
                Text(
                    "There is none yet: nasgrow confirm makes it, with fresh seeds on the test split.",
                    quiet=True,
                )
            )
            return section
        section.blocks.append(
            self.picture(
                "confirmations",
                confirmations(confirmed),
                "Test loss of each candidate with fresh seeds: a dot for each seed, a stroke at the mean, "
                "a band for its 95% interval. Blue grows, orange is a fixed size. Order is by validation "
                "loss.",
            )
        )
        rows = [
            [
                one.title,
                "grows" if one.trial.grows else "fixed size",
                words.loss(one.mean),
                ", ".join(f"{loss:.4f}" for loss in one.losses),
                ", ".join(str(seed) for seed in one.seeds),
                str(one.failed or ""),
            ]
            for one in confirmed
        ]
        columns = ["candidate", "kind", "mean test loss", "test losses", "seeds", "not finished"]
        text = frozenset({"candidate", "kind", "test losses", "seeds"})
        section.blocks.append(Table(columns, rows, text))
        return section

    def compute(self) -> Section:
        """Loss over compute."""
        records, ranking, verdict = self.found.records, self.found.ranking, self.found.verdict
        section = Section("Loss over compute")
        schedules = [contender(records, trial) for trial in ranking.schedules[:CURVES]]
        fixed = [
            (tuned.size.name, contender(records, tuned.best))
            for tuned in ranking.sizes
            if tuned.best is not None
        ]
        final = next((one for name, one in fixed if name == ranking.final.size.name), None)
        best = ranking.best_size
        rivals = [(name, one) for name, one in fixed if one is final or (best and name == best.size.name)]
        figure = loss_over_compute(schedules, rivals, records.study.budget)
        if figure is None:
            section.blocks.append(
                Text("No curve yet: no run of schedule or fixed size has finished.", quiet=True)
            )
            return section
        section.blocks.append(
            self.picture(
                "loss-over-compute",
                figure,
                "Validation loss over training compute of the search's best schedules and of fixed sizes "
                "at their best learning rate. Diamonds are events; the mark at the end is the final loss, "
                "measured on more text than the points of the curve.",
            )
        )
        saved = compute_saved(schedules, final) if final else None
        if saved is None:
            section.blocks.append(
                Text(
                    "No figure of compute saved: it takes curves of a schedule and of the final shape.",
                    quiet=True,
                )
            )
        else:
            section.blocks.append(
                self.picture(
                    "compute-saved",
                    saved,
                    "Compute saved over the final shape from scratch, at each validation loss that both "
                    "reached. Read off the curves above: the study has one budget, so only their right "
                    "ends are near the end of the decay. Left of it, this compares runs in the middle of "
                    "their training.",
                )
            )
        if verdict.confirmed:
            section.blocks.append(
                Text("Curves are those of the search's own runs, with its seeds.", quiet=True)
            )
        return section

    def schedules(self) -> Section:
        """The best schedules: when each dimension grows, and the leaderboard."""
        ranking = self.found.ranking
        section = Section("The best schedules")
        if not ranking.searched:
            section.blocks.append(Text("No trial of the search has finished.", quiet=True))
            return section
        if ranking.schedules:
            section.blocks.append(
                self.picture(
                    "timeline",
                    timeline(ranking.schedules[:LINES]),
                    "Size of each dimension over the budget, for the best schedules (thinner lines rank "
                    "higher). Sizes within layers are means over the layers that exist.",
                )
            )
        final = ranking.final.best
        rows = [
            [
                str(place),
                trial.title,
                words.loss(trial.loss),
                words.signed(trial.loss - final.loss) if final and final.loss and trial.loss else "",
                f"{trial.record.learning_rate:.3g}",
                trial.record.words,
            ]
            for place, trial in enumerate(ranking.searched[:TOP], 1)
        ]
        columns = ["", "trial", "validation loss", "against final", "learning rate", "schedule"]
        section.blocks.append(Table(columns, rows, frozenset({"trial", "schedule"})))
        return section

    def baselines(self) -> Section:
        """The fixed sizes and their learning rates."""
        ranking = self.found.ranking
        section = Section("Baselines")
        if not any(tuned.best for tuned in ranking.sizes):
            section.blocks.append(
                Text("No baseline has finished: nothing can be said about growth.", quiet=True)
            )
            return section
        section.blocks.append(
            self.picture(
                "tuning",
                tuning(ranking.sizes, ranking.schedules),
                "Validation loss over the peak learning rate: each fixed size, trained from scratch under "
                "the same budget, and the schedules of the search. A fair baseline has its lowest point "
                "inside the range.",
            )
        )
        rows = []
        for tuned in ranking.sizes:
            best = tuned.best
            rates = ", ".join(f"{trial.record.learning_rate:.3g}" for trial in tuned.tried)
            rows.append(
                [
                    tuned.size.name,
                    words.loss(best.loss) if best else "",
                    f"{best.record.learning_rate:.3g}" if best else "",
                    "yes" if best and tuned.at_edge else "",
                    rates,
                    words.count(best.record.parameter_count) if best else "",
                    str(tuned.size.shape),
                ]
            )
        columns = [
            "size",
            "validation loss",
            "best rate",
            "at the edge",
            "rates tried",
            "parameters",
            "shape",
        ]
        section.blocks.append(
            Table(columns, rows, frozenset({"size", "at the edge", "rates tried", "shape"}))
        )
        return section

    def matters(self) -> Section:
        """Which choices matter."""
        ranking = self.found.ranking
        section = Section("What matters")
        if ranking.schedules:
            section.blocks.append(
                self.picture(
                    "first-grown",
                    heat_map(ranking.schedules),
                    "Mean validation loss by the dimension that the first event grows and by when it "
                    "happens; n is the number of schedules. One that begins with several dimensions "
                    "counts for each of them.",
                )
            )
        else:
            section.blocks.append(Text("No heat map: no schedule that grows has finished.", quiet=True))
        found = effects(ranking.searched) if len(ranking.searched) >= ENOUGH else []
        if not found:
            reason = f"{words.many(len(ranking.searched), 'finished trial')}, and it takes {ENOUGH}"
            section.blocks.append(Text(f"No effects of parameters: {reason}.", quiet=True))
            return section
        section.blocks += [
            self.picture(
                "importance",
                importance(found),
                "Share of the variance of the validation loss that each searched parameter explains alone "
                "(one-way analysis of variance, eta squared corrected for the number of groups). The "
                "sampler prefers good regions, so parameters are not independent: a guide, not a proof.",
            ),
            self.picture(
                "marginal-effects",
                marginal(found),
                "Mean validation loss of the trials at each value, or range of values, of the strongest "
                "parameters, with 95% intervals.",
            ),
        ]
        return section

    def search(self) -> Section:
        """How the search got on, and what the study cost."""
        records, ranking = self.found.records, self.found.ranking
        section = Section("The search")
        tried = records.of_kind("search")
        if ranking.searched:
            fixed = [
                (tuned.size.name, tuned.best.loss)
                for tuned in ranking.sizes
                if tuned.best is not None and tuned.best.loss is not None
            ]
            section.blocks.append(
                self.picture(
                    "progress",
                    search_progress(tried, fixed),
                    "Validation loss of each trial, in order of their numbers, over the compute that the "
                    "search had executed; the line is the best so far. Dashed: the best loss of each "
                    "fixed size.",
                )
            )
        else:
            section.blocks.append(
                Text("No progress to show: no trial of the search has finished.", quiet=True)
            )
        objectives = records.study.config.objectives
        if len(objectives) == 2 and ranking.searched:
            section.blocks.append(
                self.picture(
                    "pareto",
                    pareto(ranking.searched, objectives[1]),
                    "Loss against what the final model costs. No trial beats one of the front in both.",
                )
            )
        section.blocks.append(_cost(records))
        return section

    def events(self) -> Section:
        """What growing does to the loss."""
        section = Section("Events")
        events = self.found.records.events
        if not len(events):
            section.blocks.append(Text("No event is recorded.", quiet=True))
            return section
        back = events["recovery"].astype(float)
        told = (
            f"{words.many(len(events), 'event')}: after {int(back.notna().sum()):,} of them an evaluation "
            "came below the loss before the event"
        )
        if back.notna().any():
            told += f", half of them within {back.median():.0%} of the budget"
        section.blocks += [
            Text(f"{told}."),
            self.picture(
                "events",
                recovery(events),
                "Every event of every run. Growing leaves the function as it is, so logits and loss "
                "should not move; then new parameters and the re-warmed learning rate cost some training. "
                "Recovery is seen at evaluations only, so it is known to their spacing.",
            ),
        ]
        return section

    def integrity(self) -> Section:
        """What the numbers stand on."""
        records, found = self.found.records, self.found.integrity
        largest = "no event recorded" if found.largest_change is None else f"{found.largest_change:.1e}"
        origins = records.origins
        rows = [
            ["Largest change of a logit at an event", f"{largest}, of {words.many(found.events, 'event')}"],
            [f"Events above {LIMIT:g}", "; ".join(found.broken) or "none"],
            ["Trials recorded", _counts(records)],
            ["Pruned", str(found.pruned)],
            ["Diverged", str(found.diverged)],
            ["Data fingerprint", _listing(origins.fingerprints)],
            ["Commit", _listing(origins.commits)],
            ["Versions", _listing(origins.versions)],
            ["Machine", _listing(origins.machines)],
        ]
        return Section("Integrity", [Table(["", "found"], rows, frozenset({"", "found"}))])

    def files(self) -> Section:
        """What lies beside this page."""
        listed = [
            "runs.parquet and runs.csv: a row for each run, with all of its numbers",
            "summary.json: the verdict and the state of the study for programs",
            "figures: each figure as SVG and PNG",
        ]
        if self.found.verdict.ours is not None:
            listed.insert(0, "best-schedule.yaml: the best schedule as a run file, for nasgrow train")
        return Section("Files", [Bullets(listed)])


def facts(records: Records) -> str:
    """What was studied, in a line."""
    study = records.study
    parameters = parameter_count(study.final, study.config.variant)
    return (
        f"Final shape {study.final}, {words.count(parameters)} parameters; {words.compute(study.budget)} of "
        f"training for every run; {_counts(records)}."
    )


def _counts(records: Records) -> str:
    counted = {KINDS[kind]: len(records.of_kind(kind)) for kind in KINDS}
    planned = records.study.config.trials
    of = "" if planned is None else f" of {planned}"
    return (
        f"{counted['search']}{of} search trials, {words.many(counted['baselines'], 'baseline run')}, "
        f"{words.many(counted['confirmations'], 'confirmation')}"
    )


def _tiles(verdict: Verdict) -> list[Tile]:
    tiles = []
    for comparison in verdict.comparisons:
        estimate, saved = comparison.difference, comparison.saved
        if estimate.low is not None:
            sure = f"95% interval {words.interval(estimate)}"
        else:
            sure = (
                "no interval: it takes two seeds of each" if verdict.confirmed else "a candidate: no interval"
            )
        tiles.append(
            Tile(words.signed(estimate.value), f"{verdict.split} loss against {comparison.rival}", sure)
        )
        if saved is not None:
            value = f"{saved.share:.0%}".replace("-", "−")
            label = f"compute saved over {comparison.rival}"
            tiles.append(Tile(value, label, "at equal validation loss, read off curves"))
    return tiles


def _cost(records: Records) -> Table:
    rows = []
    whole: list[Trial] = []
    for kind, name in [*KINDS.items(), ("", "all")]:
        trials = records.of_kind(kind) if kind else whole
        whole += trials if kind else []
        rows.append(
            [
                name,
                words.count(len(trials)),
                words.count(sum(len(trial.record.runs) for trial in trials)),
                words.compute(sum(trial.record.charged for trial in trials)),
                words.compute(sum(trial.record.executed for trial in trials)),
                f"{sum(trial.record.seconds for trial in trials) / 3600:.2f}",
            ]
        )
    columns = ["cost", "trials", "runs", "charged", "executed", "hours of training"]
    return Table(columns, rows, frozenset({"cost"}))


def _listing(counted: dict[str, int]) -> str:
    if len(counted) <= 1:
        return next(iter(counted), "not recorded")
    return "; ".join(f"{name} ({words.many(number, 'run')})" for name, number in counted.items())
