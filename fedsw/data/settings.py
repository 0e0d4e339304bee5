"""Sections [data] and [partition]: which records there are, how they are spread over clients; data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedsw._tools.own_objects import OBJECT, is_held, is_reference
from fedsw._tools.registry import Registry
from fedsw._tools.section import PositiveFloat, PositiveInt, Section, Seed, SettingRule
from fedsw._tools.settings import require_data_set
from fedsw._tools.text import nearest
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Name


@dataclass(frozen=True)
class DataSet:
    """Facts of a named data set, known before a file of it is read.

    The function ``made_by``, of `fedsw.data` or as `module:name` below it, has ``parameters`` named by settings of
    `[data]`. The ``shape`` is features, groups and classes; None if the settings decide. A regression predicts one
    ``number`` of it, or the two of a point. Some ``tasks`` take it beside those that name it. ``images`` meet those of
    a public set at one side, unless they are too ``small``.
    """

    made_by: str
    parameters: Mapping[str, str]
    shape: tuple[int, int, int] | None = None
    images: bool = False
    small: bool = False
    number: bool = False
    tasks: tuple[str, ...] = ()


_SIZES = {"n": "records", "n_test": "test_records", "seed": "seed"}
_FILES = {"data_dir": "data_dir"}
_SPLIT = {**_FILES, "split_seed": "seed"}
_OF_SYNTHETIC = {
    "p": "correlation",
    "d_core": "core_features",
    "d_spurious": "spurious_features",
    "target": "target",
}
SOURCES: Registry[DataSet] = Registry("data.source", DataSet)
"""The data sets that have a name; records of a user's own are a file, an object or `module:name`."""
for _name, _data_set in {
    "synthetic": DataSet("synthetic", {**_SIZES, **_OF_SYNTHETIC}),
    "adult": DataSet("adult", _FILES, (102, 2, 2)),
    "ring": DataSet("ring", _SIZES, (2, 1, 1)),
    "gaussians": DataSet("gaussians", _SIZES, (2, 1, 5)),
    "digits": DataSet("digits", {"seed": "seed"}, (64, 1, 10), images=True, small=True),
    "mnist": DataSet("mnist", _FILES, (784, 1, 10), images=True),
    "fashion-mnist": DataSet("fashion_mnist", _FILES, (784, 1, 10), images=True),
    "usps": DataSet("usps", _FILES, (256, 1, 10), images=True),
    "law-school": DataSet("law_school", _SPLIT, (16, 4, 2), number=True),
    "communities": DataSet("communities", _SPLIT, (98, 2, 2), number=True),
}.items():
    SOURCES.register(_name, _data_set)

_OWN = ("files", OBJECT)

Encoder = Callable[[Any, int, int], Any]
"""From a whole `Dataset` of images, the length of a code and epochs to a `Dataset` of codes."""
ENCODERS: Registry[Encoder] = Registry("an encoder")
"""Ways to encode the private half of a data set of images; rooms above, which learn them, register theirs."""

Target = Literal["class", "point", "mean"]
"""What of a named data set is predicted: its class, or as `Data.target` says."""


@dataclass(frozen=True)
class OwnFiles:
    """Clients' own files; the ``folder`` is where those of a simulation are, None while unset."""

    folder: Path | None


class ObjectDescription(Section):
    """Public description of a Python object that a run's records came from, without a fingerprint of any record.

    Attributes:
        kind: its type, "pandas.DataFrame".
        records: their number, or that of units; never by group or label, which not every guarantee makes public.
    """

    kind: str
    records: int


class Data(Section):
    """Which records the clients hold.

    Files are in `data_dir`, or where the environment variable FEDSW_DATA says. `records` and `test_records` are numbers
    to draw from a law (synthetic, ring, gaussians); the synthetic one has parameters, and its regression predicts the
    `target`: the point (y1, y2), or the number (y1 + y2) / 2. Of a source that is not drawn `most_records` keeps as
    many of the first private records. `row_norm` scales the features of every record to that l2 norm by itself (no
    statistic of the data is used), so that clips hardly bite. `public` is the labelled public data set that domain
    adaptation learns from, `public_batch` records a round.

    With `half`, an image data set's first half is public and its second half the private records; `encoded` makes
    these the unit-norm codes, of so many numbers, of an autoencoder that learnt from the public half for
    `encoder_epochs`. `code` puts the class beside a record's features, one-hot times that length: private as they are.

    With `source` "files" every client brings its own; `columns` declares what is in them, and `held_out` names the
    file at the server, if there is one, that metrics are measured on. Rows of it that a private file holds too are
    refused. `held_out_overlap` "other-people" is the user's unproven assertion that equal rows there are of other
    people: the guarantee and the verdict stay, and the record names the assertion; persons by a unit in common, and
    more equal rows than private ones have among themselves, are refused still. With "allow" nothing is asserted, it
    goes on, and the record says epsilon = infinity for its reader.

    `unit` names the column of privacy-unit ids in own records: all rows of a person are one unit, every batch
    draws units and one row of each, and the guarantee, sizes and ledgers are those of units. It is the same as
    `columns.unit`.

    With `held_out_fraction` every client keeps that part of its own records out of training, by unit: the operators
    measure released models on them with `fedsw evaluate`, at their own screens, and nothing of them leaves. With
    `held_out_to` "everybody" counts and sums over them leave once, when training has ended: noised, and charged to the
    ledger as a group of their own, at the run's (epsilon, delta); the run's metrics are then made of these.

    With `source` "module:name" records come from a function or an object of a Python module, and `held_out` may name
    another; with "object" they are passed to `fedsw.run(experiment, data=...)`, which replaces it by
    "object:" and a random name, and writes down in `objects` what is public of them.

    `read_off` is written by a run, too: which lists of `columns`, "groups" or "classes", are undeclared, so that they
    are those of the records (`fedsw.as_records` without `groups` or `classes`).

    `account` is the name of the data set: all runs that name it have one budget (`fedsw account`).
    """

    removed: ClassVar[Mapping[str, Any]] = {"core_variance": 0.2, "spurious_variance": 0.4}
    source: str = "synthetic"
    public: Literal["mnist", "usps"] | None = None
    public_batch: PositiveInt = 512
    records: PositiveInt = 30_000
    test_records: PositiveInt = 10_000
    most_records: PositiveInt | None = None
    correlation: Annotated[float, Field(ge=0, le=1)] = 0.7
    core_features: PositiveInt = 8
    spurious_features: PositiveInt = 8
    target: Literal["point", "mean"] = "point"
    seed: Seed = 0
    row_norm: PositiveFloat | None = None
    half: bool = False
    encoded: PositiveInt | None = None
    encoder_epochs: PositiveInt = 10
    code: PositiveFloat | None = None
    data_dir: str | None = None
    columns: Columns | None = None
    unit: Name | None = None
    held_out: str | None = None
    held_out_overlap: Literal["refuse", "other-people", "allow"] = "refuse"
    held_out_fraction: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    held_out_to: Literal["operator", "everybody"] = "operator"
    objects: tuple[ObjectDescription, ...] = ()
    read_off: tuple[Literal["groups", "classes"], ...] = ()
    account: Annotated[str, AfterValidator(require_data_set)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_unit(cls, raw: Any) -> Any:
        """Copy the unit into the declaration, too, so that clients see it where they agree to columns."""
        if not isinstance(raw, Mapping) or raw.get("columns") is None:
            return raw
        columns, unit = raw["columns"], raw.get("unit")
        if isinstance(columns, Columns):
            columns = columns.model_dump()
        if not isinstance(columns, Mapping):
            return raw
        declared = columns.get("unit")
        if unit is not None and declared is not None and unit != declared:
            raise ValueError(f"unit is {unit!r}, and columns.unit is {declared!r}; name the column once")
        both = unit if declared is None else declared
        return raw if both is None else {**raw, "unit": both, "columns": {**columns, "unit": both}}

    @field_validator("source")
    @classmethod
    def _known_source(cls, source: str) -> str:
        if source in SOURCES or source in _OWN or is_reference(source):
            return source
        known = (*SOURCES, *_OWN)
        raise ValueError(
            f"source {source!r} is unknown; {nearest(source, known)}choose one of {', '.join(known)}, or write "
            "module:name for records of your own"
        )

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        of_files, source, drawn = self.own, f"of source {self.source!r}", self.drawn
        yield SettingRule(
            when=self.source == "files",
            requires=self.columns is not None,
            says="source 'files' reads the columns that [data.columns] declares; it is missing",
        )
        yield SettingRule(
            when=self.columns is not None or self.held_out is not None,
            requires=of_files,
            says=f"columns and held_out belong to source 'files', not to {self.source!r}, or to records of your own "
            "('object', module:name); leave them out",
        )
        yield SettingRule(
            when=self.unit is not None,
            requires=of_files,
            says=f"unit is about records of your own, and every record of {self.source!r} is a unit; leave it out",
        )
        yield SettingRule(
            when=self.held_out_fraction,
            requires=of_files,
            says=f"held_out_fraction is about records of your own, and {self.source!r} has a held-out part already; "
            "leave it out",
        )
        released = "held_out_to 'everybody' releases counts of what held_out_fraction keeps out of training, and"
        yield SettingRule(
            when=self.held_out_released,
            requires=self.held_out is None,
            says=f"{released} held_out names a table already; set held_out_to to 'operator', or leave held_out out",
        )
        yield SettingRule(
            when=self.held_out_released,
            requires=self.held_out_fraction,
            says=f"{released} held_out_fraction is 0; set held_out_to to 'operator', or held_out_fraction to 0.2, say",
        )
        yield SettingRule(
            when=self.unit is not None,
            requires=self.columns is not None,
            says=f"unit names the column {self.unit!r}, and no columns are declared; declare [data.columns], or read "
            "the records with fedsw.as_records(..., unit=...)",
        )
        yield SettingRule(
            when=self.objects,
            requires=self._family == OBJECT,
            says=f"objects is written by a run of Python objects, not for {self.source!r}; leave it out",
        )
        yield SettingRule(
            when=self.read_off,
            requires=self.columns is not None,
            says="read_off is written by a run, about the columns that it found; leave it out",
        )
        yield SettingRule(
            when=self.held_out_overlap != "refuse",
            requires=self.held_out is not None or self.source == OBJECT,
            says="held_out_overlap is about the file of data.held_out, and there is none; leave it out",
        )
        # what is about records that are drawn from a law, about the law of one source, or about files
        number = self.changed("records", "test_records")
        yield SettingRule(
            when=number,
            requires=drawn,
            says=f"{number} is for records drawn from a law, and those {source} are what they are: leave it out",
        )
        yield SettingRule(
            when=self.changed("most_records"),
            requires=not (drawn or of_files),
            says=f"most_records is for named data sets that are not drawn, not for those {source}: leave it out",
        )
        parameter = self.changed(*_OF_SYNTHETIC.values())
        yield SettingRule(
            when=parameter,
            requires=self.source == "synthetic",
            says=f"{parameter} is about the law of source 'synthetic', not {source}: leave it out",
        )
        yield SettingRule(
            when=self.changed("encoder_epochs"),
            requires=self.encoded is not None,
            says="encoder_epochs is about the autoencoder of data.encoded, which is not set: leave it out",
        )
        yield SettingRule(
            when=self.data_dir is not None,
            requires=self._family not in (OBJECT, "module"),
            says=f"data_dir is where files are, and records {source} come from Python: leave it out",
        )
        yield SettingRule(
            when=self.half or self.code is not None,
            requires=self.source in SOURCES and SOURCES.get(self.source).images,
            says=f"half and code are about images with classes, not source {self.source!r}; leave them out",
        )
        yield SettingRule(
            when=self.encoded is not None,
            requires=self.half and self.code is None,
            says="encoded takes the private half of a data set, without codes of classes: set half to true",
        )

    @property
    def _family(self) -> str:
        """Where records come from: a named data set, "files", "object" (of this process) or "module"."""
        if self.source in SOURCES or self.source == "files":
            return self.source
        return OBJECT if self.source == OBJECT or is_held(self.source) else "module"

    @property
    def own_files(self) -> OwnFiles | None:
        """The files that every client brings; None if records come otherwise."""
        if self._family != "files":
            return None
        return OwnFiles(None if self.data_dir is None else Path(self.data_dir).expanduser())

    @property
    def module(self) -> str | None:
        """The `module:name` that records come from; None if they come otherwise."""
        return self.source if self._family == "module" else None

    @property
    def held_out_code(self) -> str | None:
        """The `module:name` that held-out records come from; None if they are a table, or there are none."""
        if self.held_out is None or self.own_files is not None or not is_reference(self.held_out):
            return None
        return self.held_out

    @property
    def own(self) -> bool:
        """True if records are a user's, described by `columns`, and not a named data set."""
        return self.source not in SOURCES

    @property
    def drawn(self) -> bool:
        """True if records are drawn from a law, as many as the settings say."""
        return self.source in SOURCES and "records" in SOURCES.get(self.source).parameters.values()

    @property
    def held_out_released(self) -> bool:
        """True if counts and sums over records kept out of training leave their client, noised and charged."""
        return self.held_out_to == "everybody"

    @property
    def occurring(self) -> str | None:
        """Words for what a list read off the records makes public, "which classes and groups occur", or None."""
        return f"which {' and '.join(sorted(self.read_off))} occur" if self.read_off else None

    @property
    def label(self) -> str:
        """Name of the data in a report."""
        if self._family != "object":
            return self.source
        return " and ".join(dict.fromkeys(held.kind for held in self.objects)) or "own"

    @property
    def shows_private_rows(self) -> bool:
        """True if the operator allowed metrics, un-noised, of records that may be private."""
        return self.held_out_overlap == "allow"

    @property
    def of_other_people(self) -> bool:
        """True if the operator's word is that held-out rows which equal private ones are of other people."""
        return self.held_out_overlap == "other-people"


class Partition(Section):
    """How the records are spread over simulated clients. The rule can leak through public client sizes."""

    removed: ClassVar[Mapping[str, Any]] = {"concentration": 0.5}
    scheme: Literal["iid", "group", "dirichlet"] = "iid"
    by: Literal["sensitive", "target"] = "sensitive"
    seed: Seed = 0

    @property
    def tells(self) -> Literal["group", "label"] | None:
        """The part of a record that chooses its client and that clients' sizes then tell; None if nothing does."""
        if self.scheme == "iid":
            return None
        return "label" if self.scheme == "dirichlet" and self.by == "target" else "group"


@dataclass(frozen=True)
class RecordSource:
    """Where a run's records come from: its section [data], what is predicted, and how many clients there are."""

    data: Data
    target: Target
    clients: int
