"""Read and validate an experiment: a shipped one by name, a TOML file, a stored run or a dict."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import SerializerFunctionWrapHandler, ValidationInfo, field_validator, model_serializer, model_validator

from fedsw._tools.own_objects import is_reference
from fedsw._tools.settings import (
    ExperimentError,
    Setting,
    apply_setting,
    deep_copy,
    in_our_words,
    our_keys,
    read_setting,
    validated,
)
from fedsw._tools.text import Short, nearest
from fedsw.experiment.choices import Settings, load_metrics, require_references
from fedsw.experiment.compatibility import TAGGED, misfit, only_read, tagged, without_unread
from fedsw.experiment.penalty_names import NO_PENALTY
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.sections import ObjectiveSettings, Privacy
from fedsw.experiment.synonyms import SYNONYMS
from fedsw.experiment.task_kinds import shipped_task
from fedsw.experiment.trust import trust_model, trust_models

SHIPPED = Path(__file__).parents[1] / "shipped"
"""The experiments, comparisons and the node file that come with fedsw, as files of the package; edited there."""

BLANK = "FILL IN"
"""The text that stands where a public bound, category or kind is asked for."""

_MOST_SHOWN = 6


def blank_lines(text: str) -> dict[int, str]:
    """The lines of an experiment file that have blanks, by number, without their comments."""
    lines = {row: line.partition("#")[0].strip() for row, line in enumerate(text.splitlines(), start=1)}
    return {row: line for row, line in lines.items() if f'"{BLANK}"' in line}


def require_filled(path: Path, text: str) -> None:
    """Raise ExperimentError for an experiment file that has blanks left, with their lines."""
    lines = blank_lines(text)
    if not lines:
        return
    shown = "".join(f"\n  line {row}: {line}" for row, line in list(lines.items())[:_MOST_SHOWN])
    more = f"\n  and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
    raise ExperimentError(
        f'{path} has blanks: write public bounds, categories or kinds in place of "{BLANK}", from a code book '
        f"or a law, not from the records:{shown}{more}"
    )


FULL_EVALUATION = 'evaluation.mode="full"'
"""The setting for tables: metrics on all held-out records."""
_LONGEST_NAME = 100


class Experiment(Short, Settings):
    """All settings of one run, checked against each other.

    Settings that do not go together, or that nothing would look at, are refused; of a task of the user's own, what
    takes its facts is settled when the experiment is made concrete (`fedsw.learning.tasks.problem.Problem`). A key that
    other libraries have for a setting is taken where it means the same (`fedsw._tools.settings.TAKEN`), and elsewhere
    refused with the name that it has here (`synonyms`).

    A `seed` makes sampling and noise reproducible: the record then says nominal epsilon.

    `metrics` names functions of a user's own, `module:name`, that the server measures held-out outputs with
    (`fedsw.runs.evaluation.evaluator`). Clients never see their names and import none.
    """

    synonyms: ClassVar = SYNONYMS

    def _facts(self) -> Mapping[str, object]:
        privacy = self.privacy
        requested = (
            {"epsilon": privacy.epsilon} if privacy.noise_multiplier is None else {"noise": privacy.noise_multiplier}
        )
        what = {"task": self.objective.task, "model": self.model.kind, "alpha": self.objective.alpha}
        of = {"data": self.data.label, "clients": self.federation.clients, "trust": privacy.trust}
        return {"name": self.name, **what, **of, **requested, "rounds": self.releases}

    def with_sections(self, **changes: Mapping[str, object]) -> Experiment:
        """Return a copy with other values in some sections, by their names; nothing is validated again."""
        return self.model_copy(
            update={name: getattr(self, name).model_copy(update=values) for name, values in changes.items()}
        )

    def on_host(self) -> Experiment:
        """Return a copy that computes on the processor, for a machine without the device of the run."""
        return self.with_sections(training={"device": "cpu"}, privacy={"device": None})

    @model_validator(mode="before")
    @classmethod
    def _only_read(cls, raw: Any) -> Any:
        return only_read(raw)

    @field_validator(*TAGGED, mode="before")
    @classmethod
    def _of_trust_model(cls, raw: Any, info: ValidationInfo) -> Any:
        """Read a section by the class that trust model and task have for it; nothing if [privacy] is refused."""
        assert info.field_name is not None
        if info.field_name != "privacy" and "privacy" not in info.data:
            return {}
        if info.field_name == "privacy":
            default = Privacy.model_fields["trust"].default
            trust = raw.get("trust", default) if isinstance(raw, Mapping) else getattr(raw, "trust", None)
        else:
            trust = info.data["privacy"].trust
        if not (isinstance(trust, str) and trust in trust_models()):
            return raw
        # pydantic reads fields in the order of `Settings`: [objective] is settled before [privacy] and what follows it
        objective: ObjectiveSettings | None = info.data.get("objective")
        kind = None if objective is None else shipped_task(objective.task)
        return tagged(info.field_name, raw, trust, sketch=kind is not None and kind.facts.sketched)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise ValueError(f"name {name!r} must be letters, digits, '.', '_' and '-' (it names a folder)")
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"name has {len(name)} letters; a folder is named for it: at most {_LONGEST_NAME}")
        return name

    @field_validator("metrics")
    @classmethod
    def _plain_metrics(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        require_references(metrics)
        return metrics

    @model_serializer(mode="wrap")
    def _with_what_is_left_open(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out settings that `training.preset` has still to choose: what is written counts as the user's."""
        settings: dict[str, Any] = written(self)
        for section, names in left_open(self).items():
            for name in set(names) - getattr(self, section).model_fields_set:  # "auto", where that is written, stays
                settings.get(section, {}).pop(name, None)
        if not self.privacy.hides_sizes:
            settings.get("privacy", {}).pop("records", None)
        if settings.get("local") == {}:
            del settings["local"]
        if not self.thresholds.share:
            settings.pop("thresholds", None)
        if not (self.calibration.model_fields_set and settings.get("calibration")):
            settings.pop("calibration", None)
        return settings

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        if refusal := misfit(self, shipped_task(self.objective.task)):
            raise ValueError(refusal)
        return self


def experiment_of(
    source: Experiment | Path | str | Mapping[str, Any],
    settings: Iterable[str] = (),
    data_dir: Path | str | None = None,
) -> Experiment:
    """The experiment that a verb is given: one, the name of a shipped one, a file or sections, with changes to it."""
    changes = [*settings, *in_folder(data_dir)]
    if isinstance(source, Experiment):
        return parse_experiment(source.model_dump(exclude_unset=True), changes) if changes else source
    return parse_experiment(source, changes) if isinstance(source, Mapping) else load_experiment(source, changes)


def in_folder(data_dir: Path | str | None) -> list[str]:
    """The setting that clients' files are in this folder; none without one."""
    if data_dir is None:
        return []
    return [f"data.data_dir={json.dumps(str(Path(data_dir).expanduser().resolve()), ensure_ascii=False)}"]


def load_experiment(path: Path | str, overrides: Iterable[str] | str = ()) -> Experiment:
    """Read an experiment from a TOML file, with `section.key=value` overrides (values in TOML syntax; a text is one).

    A text is the name of a shipped experiment, or a path (`find_experiment`). What it names of a user's own is imported
    here: a module that is missing is found out at once. Paths in the file are relative to its folder. ExperimentError,
    naming the key, the nearest known name, or the value and its limit.
    """
    path = find_experiment(path) if isinstance(path, str) else path
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except FileNotFoundError:
        raise ExperimentError(f"no experiment file at {path}; `fedsw list` shows the shipped ones") from None
    except OSError as fault:
        raise ExperimentError(f"the experiment file {path} cannot be read: {fault.strerror}") from None
    except (ValueError, RecursionError) as fault:
        raise ExperimentError(f"{path} is not valid TOML: {fault}") from None
    require_filled(path, text)
    # paths are relative to the file's folder; "module:name" is none
    if isinstance(section := raw.get("data"), dict):
        for key in ("data_dir", "held_out"):
            value = section.get(key)
            if isinstance(value, str) and not is_reference(value):
                section[key] = str(path.parent / Path(value).expanduser())
    experiment = parse_experiment(raw, overrides)
    load_metrics(experiment.metrics)
    return experiment


def parse_experiment(raw: Mapping[str, Any], overrides: Iterable[str] | str = ()) -> Experiment:
    """Validate a mapping as an experiment; see `load_experiment`.

    Overriding one of privacy.epsilon, privacy.noise_multiplier and privacy.trust = "none" drops what `raw`
    says of the others, since they exclude each other; overriding two that conflict is an error. Overriding
    privacy.trust or objective.task drops settings of `raw` that other trust models or tasks alone read; overriding
    objective.penalty with "none" drops the weights of penalties.
    """
    merged = deep_copy(raw)
    in_our_words(merged)
    read = [read_setting(override) for override in ([overrides] if isinstance(overrides, str) else overrides)]
    settings = [(our_keys(keys), value) for keys, value in read]
    # epsilon, noise and trust "none" exclude each other: what an override says of one replaces what is read of all
    overridden = {keys[1] for keys, _ in settings if len(keys) == 2 and keys[0] == "privacy"}
    trust, task = _chosen(settings, "privacy", "trust"), _chosen(settings, "objective", "task")
    noiseless = trust in trust_models() and trust_model(str(trust)).fixed_epsilon is not None
    if isinstance(merged.get("privacy"), dict) and (noiseless or overridden & {"epsilon", "noise_multiplier"}):
        for name in ("epsilon", "noise_multiplier"):
            merged["privacy"].pop(name, None)
    if _chosen(settings, "objective", "penalty") == NO_PENALTY and isinstance(merged.get("objective"), dict):
        merged["objective"] = {k: v for k, v in merged["objective"].items() if k not in ("alpha", "also")}
    merged = without_unread(merged, trust=trust, task=task)
    for keys, value in settings:
        apply_setting(merged, keys, value)
    return validated(Experiment, merged, apart="\n")


def _chosen(settings: list[Setting], section: str, name: str) -> str | None:
    """Return the last value that overrides give a name of a section, or None."""
    values = [value for keys, value in settings if keys == (section, name)]
    return values[-1] if values and isinstance(values[-1], str) else None


def shipped() -> dict[str, Path]:
    """The files of the shipped experiments by name."""
    return {path.stem: path for path in sorted((SHIPPED / "experiments").glob("*.toml"), key=lambda path: path.stem)}


def shipped_experiments() -> list[Experiment]:
    """Every shipped experiment, validated."""
    return [load_experiment(path) for path in shipped().values()]


def find_experiment(name: str) -> Path:
    """The file behind a shipped name or a path; ExperimentError names the nearest shipped experiment."""
    known = shipped()
    if name in known:
        return known[name]
    path = Path(name).expanduser()
    if path.suffix == ".toml" or len(path.parts) > 1 or path.is_file():
        return path
    raise ExperimentError(
        f"no experiment {name!r}; {nearest(name, list(known))}known: {', '.join(known)}. "
        "A path to a TOML file works too"
    )


def of_unit(unit: str) -> str:
    """Name in words what epsilon covers under a declared unit: its records at this client only."""
    return f"all records of one {unit!r}, at each client by itself"


def unprotected(experiment: Experiment) -> str | None:
    """The setting that takes the guarantee away, in words; None if there is one."""
    if (why := experiment.privacy.guarantee.unprotected) is not None:
        return why
    if experiment.seed is not None:
        return f"seed is {experiment.seed}: whoever knows it can undo sampling and noise"
    if experiment.unsafe_metrics:
        return "unsafe_metrics asks for un-noised training losses"
    if experiment.data.shows_private_rows:
        return "data.held_out_overlap 'allow' publishes metrics of records that may be private, without noise"
    return None
