"""Laws of `training.preset = "auto"`: public numbers alone decide, the user's word wins, a run's record has it all."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

import fedsw
from fedsw.data import as_records
from fedsw.desk.planning.run_plan import noise_at_weights, planned
from fedsw.desk.planning.run_plan import rows as plan_rows
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.preset_rules import CHOSEN, PresetNumbers, Squares, left_open
from fedsw.federation.engines.driver import resume, run
from fedsw.federation.engines.records_at_hand import at_hand
from fedsw.federation.server.settling import multiplier_of_one, numbers_of, settled, sizes_at_hand
from fedsw.privacy.accounting import Slicing, Step, epsilon_by
from fedsw.runs.directory import RunDirectory
from tests.federations import small

FEATURES = [{"name": "x", "low": 0, "high": 1}, {"name": "job", "categories": ["a", "b", "c"]}]
COLUMNS = {
    "features": FEATURES,
    "sensitive": {"name": "sex", "values": ["f", "m"]},
    "target": {"name": "y", "values": ["no", "yes"]},
}
SIZES = {"f": 400, "m": 600}


def asked(**sections) -> Experiment:
    raw = {
        "name": "own",
        "data": {"source": "object", "columns": COLUMNS},
        "training": {"preset": "auto"},
        "privacy": {"epsilon": 1.0, "delta": "1/n^2"},
        "federation": {"clients": 1},
    }
    return parse_experiment({**raw, **sections})


def table(rows: int = 60) -> dict:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows, generator=generator)
    return {
        "x": x.tolist(),
        "job": ["abc"[i % 3] for i in range(rows)],
        "sex": ["fm"[i % 2] for i in range(rows)],
        "y": ["yes" if value > 0.5 else "no" for value in x],
    }


def rate_of(experiment: Experiment, **changes) -> float:
    return settled(experiment, replace(numbers_of(experiment, SIZES), **changes)).training.learning_rate


def test_everything_is_chosen_and_nothing_is_chosen_twice():
    ready = settled(asked(), numbers_of(asked(), SIZES))
    assert left_open(asked()) == CHOSEN and left_open(ready) == {}
    assert settled(ready) is ready
    again = Experiment.model_validate_json(ready.model_dump_json())
    assert again == ready and settled(again) is again


def test_what_the_user_writes_wins_and_the_rest_fits_it():
    own = asked(training={"preset": "auto", "rounds": 10, "momentum": 0.0}, clip={"loss": 1.0, "jacobian": 0.2})
    ready = settled(own, numbers_of(own, SIZES))
    assert (ready.training.rounds, ready.training.momentum) == (10, 0.0)
    assert (ready.clip.loss, ready.clip.jacobian, ready.clip.output) == (1.0, 0.2, 0.5)
    slow = asked(training={"preset": "auto", "rounds": 10}, clip={"loss": 1.0, "jacobian": 0.2})
    at_rest = settled(slow, numbers_of(own, SIZES))
    assert ready.training.learning_rate == pytest.approx(10 * at_rest.training.learning_rate, rel=0.01)


@pytest.mark.parametrize(
    ("epsilon", "records", "share"),
    [(0.5, 8_000, 0.1), (1.0, 8_000, 0.1), (1.0, 20_000, 0.05), (3.0, 8_000, 0.05), (math.inf, 8_000, 0.0)],
)
def test_a_classifier_s_probabilities_are_calibrated_and_less_of_a_large_budget_is_for_it(epsilon, records, share):
    numbers = replace(_numbers(epsilon), records=records)
    chosen = settled(asked(privacy={"epsilon": epsilon, "delta": "1/n^2"}), numbers)
    assert chosen.calibration.share == share and chosen.left_to_rounds + share == pytest.approx(
        1 - chosen.privacy.moments - chosen.privacy.histograms
    )


def test_a_plan_says_what_it_chose_for_calibration():
    found = planned(asked(), SIZES, strengths=(300.0,), expect="much")
    assert "[calibration]" in dict(plan_rows(found))


def test_calibration_that_is_written_is_not_chosen_and_off_is_a_run_without_it():
    """The rounds then have what they had, and numbers to predict have nothing to calibrate."""
    off = settled(asked(calibration={"share": 0.0}), _numbers())
    assert off.calibration.share == 0 and off.share_of_scores == 0 and settled(off) == off
    numbers = {"targets": [{"name": "y", "low": 0, "high": 1}], "features": FEATURES, "sensitive": COLUMNS["sensitive"]}
    regression = asked(data={"source": "object", "columns": numbers}, objective={"task": "regression"})
    assert (
        "calibration" not in left_open(regression) and "calibration" not in settled(regression, _numbers()).model_dump()
    )
    plain = settled(asked(model={"kind": "mlp"}), replace(_numbers(), scalable=0))
    assert plain.calibration.share == 0
    few, many = (replace(_numbers(), scalable=6, records=records) for records in (160, 16_000))
    assert (settled(asked(), few).calibration.share, settled(asked(), many).calibration.share) == (0.0, 0.05)


def _numbers(epsilon: float = 1.0) -> PresetNumbers:
    return numbers_of(asked(privacy={"epsilon": epsilon, "delta": "1/n^2"}), SIZES)


def test_what_is_left_open_stays_open_through_json_and_copies():
    unsettled = asked(training={"preset": "auto", "rounds": 7})
    again = Experiment.model_validate_json(unsettled.model_dump_json())
    assert left_open(again) == left_open(unsettled) != {}
    assert "rounds" not in left_open(again)["training"] and "learning_rate" in left_open(again)["training"]
    plain = asked(training={})
    assert plain.model_dump()["training"]["rounds"] == 500, "without the preset every default is written"


FEATURES_TAKEN = (
    ({"kind": "logistic", "inputs": "plain"}, 0.0),
    ({"kind": "logistic", "inputs": "centred"}, 0.0),
    ({"kind": "logistic", "inputs": "plain"}, 0.2),
    ({"kind": "additive", "knots": 3}, 0.2),
    ({"kind": "additive", "knots": 5}, 0.2),
)
"""How a model can take its columns, with the share of moments: steps of one kind are no longer or shorter than of
another, for inputs are in other units."""


@pytest.mark.parametrize(("model", "moments"), FEATURES_TAKEN)
def test_steps_shrink_with_noise_in_inputs_of_one_kind(model, moments):
    budgets = [{"epsilon": epsilon, "moments": moments} for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0)]
    rates = [rate_of(asked(model=model, privacy=privacy)) for privacy in budgets]
    assert rates == sorted(rates) and rates[0] < rates[-1]


def test_steps_grow_with_records_and_are_bounded_without_noise():
    rates = [settled(asked(), PresetNumbers(n, 5, 4.0)).training.learning_rate for n in (100, 1_000, 10_000)]
    assert rates == sorted(rates) and rates[0] < rates[-1]
    quiet = asked(privacy={"trust": "none"})
    assert math.isinf(numbers_of(quiet, SIZES).strength(0.1, 0.25)) and rate_of(quiet) < 100


def test_a_small_group_takes_no_more_noise_than_twice_that_of_the_loss():
    small = numbers_of(asked(), {"f": 4, "m": 996})
    found = settled(asked(), small).clip
    own = small.loss * 2 * found.loss / small.records
    assert small.penalty * found.jacobian <= 2 * own * 1.01 and found.jacobian < 0.01
    alone = replace(small, penalty=0.0).strength(found.jacobian, found.loss)
    assert alone * 0.66 < small.strength(found.jacobian, found.loss) < alone
    quiet = settled(asked(), replace(small, multiplier=0.0)).clip
    assert quiet.jacobian == quiet.loss / 2, "without noise nothing is saved"


def test_the_smaller_a_group_the_less_noise_its_penalty_takes_down_to_half_of_that_of_the_loss():
    taken = []
    for size in (*range(1, 30), *range(30, 300, 15)):
        numbers = numbers_of(asked(), {"f": size, "m": 10_000 - size})
        clip = settled(asked(), numbers).clip
        taken.append(1 / numbers.share(clip.jacobian, clip.loss) - 1)
    assert taken[0] == pytest.approx(0.5, abs=0.01) and all(0.49 < each < 2.01 for each in taken)
    assert all(one <= other * 1.02 for one, other in itertools.pairwise(taken)) and taken[-1] > 0.7


def test_moments_are_bought_where_noise_leaves_them_to_be_seen_and_not_for_few_records_or_many_columns():
    few, many = (numbers_of(asked(), {"f": size, "m": size}) for size in (4, 5_000))
    assert few.moments == 0.0 and 0 < many.moments < 1
    assert replace(many, parts=10**7).moments == 0.0, "every client adds noise of its own"
    shares = [replace(many, records=n).moments for n in (10_000, 500_000, 10**8)]
    assert shares[0] == many.moments > shares[1] > shares[2] == 0.02, "less of the budget where less shows as much"
    assert replace(many, squares=None).moments == 0.0 and replace(few, multiplier=0.0).moments > 0
    wide = replace(many.squares, side=2_000, features=1_997)
    assert replace(many, squares=wide).moments == 0.0
    said = asked(privacy={"moments": 0.1})
    assert settled(said, few).privacy.moments == 0.1 and settled(asked(), many).privacy.moments == many.moments
    alone = asked(privacy={"moments": "auto"}, training={"preset": "none"})
    assert left_open(alone) == {"privacy": ("moments",)} and settled(alone, many).privacy.moments == many.moments
    assert settled(alone, many).training == alone.training


@pytest.mark.parametrize(("records", "classes", "most"), [(1_000, True, 4.8), (999, True, 2.9), (1_000, False, 2.9)])
def test_moments_of_a_thousand_records_that_are_classified_may_show_more_noise(records, classes, most):
    """Measured on sets of 10 to 120 columns: beginning with them is better there at most noise that passes."""
    squares = Squares(side=100, features=97, bound=4.0, radius=3.0, cells=1, classes=classes)
    beside = squares.hidden(1 / math.sqrt(0.2), records, 1) / squares.spread
    for share, bought in ((0.99, True), (1.01, False)):
        assert (PresetNumbers(records, 100, share * most / beside, squares=squares).moments > 0) == bought
    assert numbers_of(asked(), SIZES).squares.classes


def test_the_strength_is_n_over_the_noise_of_one_release():
    numbers = PresetNumbers(1_000, 25, 4.0)
    assert numbers.strength(0.1, 0.25) == pytest.approx(1_000 / (4 * 5))
    assert replace(numbers, parts=4).strength(0.1, 0.25) == pytest.approx(25.0)
    one = multiplier_of_one(asked(), 1_000)
    (plan,) = [fedsw.privacy.accounting.noise_multiplier(1.0, 1e-6, sampling_rate=1.0, steps=1)]
    assert one == pytest.approx(plan, rel=1e-3)
    fixed = asked(privacy={"noise_multiplier": 10.0}, training={"preset": "auto", "rounds": 25})
    assert multiplier_of_one(fixed, 1_000) == pytest.approx(2.0)


def test_what_it_cannot_choose_for_is_refused_with_the_remedy():
    with pytest.raises(ExperimentError, match="not for objective.task 'generation': leave it out"):
        parse_experiment(
            {
                "name": "x",
                "data": {"source": "ring"},
                "model": {"kind": "generator"},
                "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
                "training": {"preset": "auto"},
            }
        )
    with pytest.raises(ExperimentError, match="training.optimizer is 'adam': leave optimizer out, or write"):
        asked(training={"preset": "auto", "optimizer": "adam"})
    asked(training={"preset": "auto", "optimizer": "adam", "learning_rate": 0.1})


def test_nothing_is_chosen_where_nobody_can_count_the_records():
    elsewhere = asked(data={"source": "files", "columns": COLUMNS})
    with pytest.raises(ExperimentError, match="they cannot be counted here: write what `fedsw plan EXPERIMENT"):
        settled(elsewhere)


def test_a_run_has_on_record_what_was_chosen_and_goes_on_with_it(tmp_path):
    records = as_records(table(), columns=asked().data.columns)
    own = asked(training={"preset": "auto", "rounds": 3}, seed=1)
    result = run(own, data=records, runs=tmp_path)
    kept, _ = RunDirectory(result.directory).read_config()
    numbers = numbers_of(own, {"f": 30, "m": 30})
    assert kept.training == settled(own, numbers).training and kept.clip == settled(own, numbers).clip
    again = resume(result.directory, data=records)
    assert again.experiment.training == kept.training and again.summary["guarantee"] == result.summary["guarantee"]


def test_a_reference_without_clips_has_its_steps_chosen_too():
    open_ = asked(privacy={"trust": "none"}, clip={"mode": "none"})
    ready = settled(open_, numbers_of(open_, SIZES))
    assert left_open(ready) == {} and ready.clip.open
    clipped = asked(privacy={"trust": "none"})
    assert ready.training.learning_rate <= settled(clipped, numbers_of(clipped, SIZES)).training.learning_rate


def test_what_is_chosen_counts_persons_that_are_trained_on_and_not_their_rows():
    once, often = table(60), {name: [*values, *values[:1] * 40] for name, values in table(60).items()}
    columns = {**COLUMNS, "unit": "who"}
    found = []
    for rows in (once, often):
        rows["who"] = [f"p{row}" for row in range(60)] + ["p0"] * (len(rows["x"]) - 60)
        experiment = asked(data={"source": "object", "columns": columns, "held_out_fraction": 0.5})
        with at_hand(experiment, as_records(rows, columns=experiment.data.columns), None, engine="inprocess") as ready:
            found.append((sizes_at_hand(ready), settled(ready).training, settled(ready).clip))
    assert found[0] == found[1] and found[0][0] == {"f": 15, "m": 15}


def test_a_preset_of_the_file_is_taken_back_on_the_command_line():
    raw = asked().model_dump()
    assert left_open(parse_experiment(raw)) and not left_open(parse_experiment(raw, ["training.preset=none"]))


SLICED = (
    "objective.task=generation",
    "objective.penalty=distribution-matching",
    "objective.alpha=1.0",
    "model={kind='generator', latent=2}",
    "data.source=ring",
    "slicing.directions=2",
)


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["privacy.trust=distributed", "local.failing=0.5"], {Step(0.2, 0.5): 6}),
        (["privacy.trust=local-gradient", "federation.clients=300"], {Step(1.0, 0.5): 4}),
        (["privacy.trust=local-slices", *SLICED], {Step(0.2, 0.5, slicing=Slicing(2, 2, "orthogonal")): 4}),
    ],
    ids=["attempts that fail", "small clients", "slices"],
)
def test_the_epsilon_of_a_plan_is_that_of_what_the_run_charges(overrides, steps):
    """With a given multiplier: all attempts that the budget is for, at the rates of the clients."""
    found = planned(small("privacy.noise_multiplier=2.0", *overrides), {"a": 300, "b": 300}, untold="not asked for")
    assert found.multiplier == 2.0 and found.epsilon == pytest.approx(epsilon_by("pld", steps, found.delta), rel=1e-6)
    failing = "as many attempts that fail as 50 % of them" in dict(plan_rows(found))["noise"]
    assert failing == ("local.failing=0.5" in overrides)


def test_a_plan_refuses_a_batch_that_the_run_would_refuse():
    with pytest.raises(ExperimentError, match="batch of 500 records asked from group"):
        planned(small("training.batch_size=500"), {"a": 300, "b": 300}, untold="not asked for")


TABLE = {
    "features": [
        *({"name": f"x{place}", "low": 0, "high": 1} for place in range(6)),
        {"name": "w", "categories": list("abc")},
    ],
    "sensitive": {"name": "sex", "values": ["f", "m"]},
    "target": {"name": "y", "values": ["no", "yes"]},
}


def of_table(records: int, columns: dict = TABLE, **sections):
    """What the preset chooses for so many records of a table, from public numbers alone."""
    written = {
        "name": "own",
        "data": {"source": "files", "columns": columns},
        "objective": {"alpha": 0.0},
        "training": {"preset": "auto"},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
    }
    chosen = parse_experiment(written | sections)
    return settled(chosen, numbers_of(chosen, {"f": records // 3, "m": records - records // 3}))


def test_the_fewer_records_the_simpler_the_features_that_are_chosen():
    found = [of_table(records) for records in (30, 400, 2_000, 10**5)]
    assert [(each.model.kind, bool(each.privacy.moments)) for each in found] == [
        *[("logistic", False)] * 2,
        *[("additive", True)] * 2,
    ]
    of_numbers = of_table(400, {**TABLE, "features": TABLE["features"][:-1]})
    assert [each.model.inputs for each in (*found[:2], of_numbers)] == ["centred", "centred", "plain"]
    assert [each.model.knots for each in found[2:]] == [3, 5]
    assert not left_open(found[3]) and settled(found[3]) is found[3]


def test_what_is_written_of_the_model_is_never_chosen_otherwise():
    linear = of_table(10**5, model={"kind": "logistic"})
    assert linear.model.kind == "logistic" and linear.privacy.moments
    assert of_table(10**5, model={"inputs": "centred", "kind": "logistic"}).model.inputs == "centred"
    assert of_table(30, model={"kind": "logistic", "inputs": "plain"}).model.inputs == "plain"
    assert of_table(10**5, model={"kind": "additive", "knots": 9}).model.knots == 9
    assert of_table(100, model={"kind": "additive"}).model.knots == 3
    network = of_table(10**5, model={"kind": "mlp", "hidden": [4]})
    assert network.model.kind == "mlp" and network.model.inputs == "plain"
    without = of_table(10**5, privacy={"epsilon": 1.0, "delta": 1e-6, "moments": 0.0})
    assert (without.model.kind, without.model.inputs) == ("logistic", "centred")


def test_columns_without_bounds_have_no_hats():
    declared = {**TABLE, "features": [*TABLE["features"], {"name": "z"}]}
    assert of_table(10**5, declared).model.kind == "logistic"


NUMBERS = {
    **{name: value for name, value in TABLE.items() if name != "target"},
    "targets": [{"name": "y", "low": 0, "high": 1}],
}


def test_few_records_of_numbers_start_at_the_noised_constant_where_noise_lets_it_be_estimated():
    task = {"task": "regression", "alpha": 0.0}
    found = {records: of_table(records, NUMBERS, objective=task) for records in (30, 200, 2_000)}
    chosen = {records: (each.model.inputs, each.privacy.moments) for records, each in found.items()}
    assert chosen == {30: ("centred", 0.0), 200: ("constant-first", 0.05), 2_000: ("plain", 0.2)}
    assert found[200].clip.loss < found[30].clip.loss, "errors are small from the first round on"
    none = of_table(200, NUMBERS, objective=task, privacy={"epsilon": 1.0, "delta": 1e-6, "moments": 0.0})
    assert (none.model.inputs, none.privacy.moments) == ("centred", 0.0)
    said = of_table(2_000, NUMBERS, objective=task, model={"kind": "logistic", "inputs": "constant-first"})
    assert said.privacy.moments == 0.05 and said.clip == found[200].clip
    rates = [
        of_table(200, NUMBERS, objective=task, privacy={"epsilon": epsilon, "delta": 1e-6}).training.learning_rate
        for epsilon in (0.7, 1.0, 1.4)
    ]
    assert rates == sorted(rates) and rates[0] < rates[-1]


def of_numbers(records: int, columns: int, *, words: int = 0, **sections):
    """What the preset chooses for a number and so many columns of numbers and of words."""
    features = [{"name": f"x{place}", "low": 0, "high": 1} for place in range(columns)]
    features += [{"name": f"w{place}", "categories": list("abc")} for place in range(words)]
    task = {"objective": {"task": "regression", "alpha": 0.0}}
    return of_table(records, {**NUMBERS, "features": features}, **task | sections)


def test_numbers_take_inputs_by_the_noise_of_answers_where_moments_tell_a_few_directions():
    few, more, most = (of_numbers(records, 40) for records in (300, 1_000, 10**6))
    assert [each.model.inputs for each in (few, more)] == ["constant-first", "by-noise"]
    assert (most.model.kind, more.model.kind) == ("additive", "logistic")
    assert (more.privacy.moments, more.training.learning_rate, more.clip.loss) == (0.2, 0.001, 0.3)
    assert of_numbers(1_000, 40, words=1).model.inputs == "constant-first", "words do not vary together"
    written = {"kind": "logistic", "inputs": "plain"}
    assert of_numbers(1_000, 40, model=written).clip.loss > 1
    assert of_numbers(1_000, 40, objective={"task": "regression", "alpha": 0.2}).model.inputs != "by-noise"
    asked_for = of_numbers(50, 40, model={"kind": "logistic", "inputs": "by-noise"})
    assert (asked_for.privacy.moments, asked_for.training.learning_rate) == (0.2, 0.001)


@pytest.mark.parametrize(
    ("sections", "words_"),
    [
        ({"objective": {"task": "classification"}, "columns": TABLE}, "is for a linear model of numbers"),
        ({"model": {"kind": "mlp", "hidden": [4], "inputs": "by-noise"}}, "is for a linear model of numbers"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-6, "moments": 0.0}}, "follows from released moments"),
    ],
)
def test_inputs_by_noise_need_moments_and_a_linear_model_of_numbers(sections, words_):
    columns = {"columns": NUMBERS, "model": {"kind": "logistic", "inputs": "by-noise"}}
    written = columns | {"objective": {"task": "regression", "alpha": 0.0}} | sections
    with pytest.raises(ExperimentError, match=words_):
        of_table(1_000, written.pop("columns"), **written)


def test_two_classes_go_a_shorter_way_where_every_record_is_far_from_the_middle_of_its_columns():
    """The noise of an output is in proportion to its inputs, and categories are as far from their middle as can be."""
    model, none = {"kind": "logistic", "inputs": "centred"}, {"epsilon": 1.0, "delta": 1e-6, "moments": 0.0}
    columns = [
        {**TABLE, "features": [{"name": f"x{place}", **kind} for place in range(6)]}
        for kind in ({"low": 0, "high": 1}, {"categories": ["a", "b"]})
    ]
    numbers, words_ = (of_table(300, each, model=model, privacy=none).training.learning_rate for each in columns)
    assert numbers > 5 * words_
    many = [of_table(10**7, each, model=model, privacy=none).training.learning_rate for each in columns]
    assert many[0] == many[1], "far above the noise steps have their most"


def test_errors_of_numbers_after_moments_are_clipped_further_out_than_those_of_answers():
    regression = of_table(10**5, NUMBERS, objective={"task": "regression", "alpha": 0.2})
    assert regression.clip.loss == 3.0 and regression.clip.jacobian <= 0.35
    assert of_table(10**5).clip.loss == 0.7
    few = of_table(300, NUMBERS, objective={"task": "regression"}, privacy={"epsilon": 8.0, "moments": 0.2})
    assert few.privacy.moments == 0.2 and few.clip.loss == 1.5


def test_a_plan_says_what_noise_a_penalty_would_take():
    chosen = asked(objective={"alpha": 0.0})
    even, uneven = (noise_at_weights(chosen, sizes) for sizes in ({"f": 2_000, "m": 2_000}, {"f": 40, "m": 3_960}))
    assert list(even) == [0.05, 0.2, 0.5] and 1 < even[0.05] < even[0.2] < even[0.5]
    assert uneven[0.05] > even[0.05], "a small group's penalty takes more"
    assert noise_at_weights(chosen, {"all": 4_000}) == {}
