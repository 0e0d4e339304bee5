"""Attacks on a run's guarantee, and a finished run recomputed: lower bounds on epsilon, and what contradicts it.

`fedsw.audit(...)` is the verb: the package is called, and its modules keep their names. `canary` trains with and
without a record of the worst kind and guesses which; `one_run` guesses many coins of one run; `finding` is what both
make of hits and false alarms. `record` recomputes a run from what its folder has, and imports of fedsw only what its
head names.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from fedsw._tools.settings import ExperimentError
from fedsw.runs.report.answer import Answer
from fedsw.runs.run_files import find_run, is_run

if TYPE_CHECKING:
    from fedsw.audit.finding import Finding
    from fedsw.experiment import Experiment

__all__ = [
    "bounds", "canary", "canary_masked", "canary_once", "canary_pairs", "finding", "neighbours", "one_run", "record",
]  # fmt: skip


class Verb(ModuleType):
    """The class of this package: a module that is called."""

    def __call__(
        self, target: Experiment | str | Path | Mapping[str, Any], *settings: str, canary: bool = False,
        one_run: int | None = None, trials: int | None = None, unsafe_finding: bool = False,
        data_dir: Path | str | None = None, runs: Path | str = "runs", allow_modules: Collection[str] = (),
        show: bool = False,
    ) -> Answer:  # fmt: skip
        """Attack a guarantee by membership inference, or check a finished run by recomputation, as `fedsw audit`.

        Rows of `to_frame()` are the checks of a run; `["shown_epsilon"]` of an attack is a lower bound. `["passed"]` is
        False where something contradicts the claim, or nothing was looked at that would.

        Args:
            target: a run, by its folder or name; with `canary` or `one_run` also an experiment, as `fedsw.run` has it.
            settings, data_dir: changes to what is attacked; a run is checked as it is.
            canary: attack the releases on the worst neighbours of the bound, by `trials` of each.
            one_run: attack one real training with this many canaries; your own records with `unsafe_finding` only.
            allow_modules: modules that a run's settings may name; their code runs.
            show: show progress.

        Raises:
            ExperimentError: for what does not go together, or cannot be attacked.
        """
        from fedsw.experiment.load import experiment_of
        from fedsw.runs.directory import RunDirectory

        attacked, named = canary or one_run is not None, isinstance(target, str | Path)
        for refused, why in (
            (canary and one_run is not None, "canary and one-run are two attacks: give one of them"),
            (
                not attacked and (settings or trials is not None or data_dir is not None),
                "a run is checked as it is; settings belong to canary and one-run",
            ),
            (not attacked and not named, "an experiment is attacked: give canary or one-run"),
            (trials is not None and not canary, "trials belong to canary"),
            (unsafe_finding and one_run is None, "an unsafe finding is one of one-run"),
        ):
            if refused:
                raise ExperimentError(why)
        finding: Finding
        if not attacked:
            from fedsw.audit import record

            finding = record.audit(find_run(str(target), Path(runs)), allow_modules)
        else:
            source = target
            if named and is_run(Path(cast(str, target))):
                source = RunDirectory(Path(cast(str, target))).read_config(allow_modules)[0].model_dump(mode="json")
            elif allow_modules:
                raise ExperimentError(
                    "modules are allowed for a run's folder; an experiment file names its modules itself"
                )
            experiment = experiment_of(source, settings, data_dir)
            if canary:
                from fedsw.audit import canary as attack

                finding = attack.audit(experiment, trials=trials, show=show)
            else:
                from fedsw.audit import one_run as training

                assert one_run is not None
                finding = training.audit(experiment, canaries=one_run, show=show, unsafe=unsafe_finding)
        content = finding.as_dict()
        return Answer(content, finding.screen, content.get("checks", ()), finding)


audit = cast(Verb, sys.modules[__name__])
audit.__class__ = Verb
