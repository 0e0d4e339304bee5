"""Laws of what is counted of kept records: how far one record moves it, and what can be read off it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import BINS, CHANCES, ONE, SCORED, Counts, Cut, RegressionSums
from fedsw.privacy.relations import ADD_OR_REMOVE
from fedsw.runs.evaluation import held_out_metrics, intervals
from fedsw.runs.evaluation.held_out_metrics import Tallied, as_many, held_out_of, noised_gain, noised_rate
from fedsw.runs.evaluation.quality import metrics_of_tables
from fedsw.runs.evaluation.verdict import warnings_of
from tests.federations import small

ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 5), st.lists(ANYTHING, min_size=10, max_size=10), st.integers(0, 4), st.integers(0, 4))
def test_one_record_moves_counts_by_at_most_the_stated_bound_whatever_the_model_says(classes, numbers, one, other):
    tally, d = Counts(2, classes), 1 if classes == 2 else classes
    outputs = torch.tensor(numbers)[: 2 * d].reshape(2, d)
    vectors = tally.vectors(outputs, torch.tensor([one % classes, other % classes]))
    assert float(torch.linalg.vector_norm(vectors[0] - vectors[1])) <= tally.moved + 1e-12
    assert float(vectors.norm(dim=1).max()) <= tally.moved_for(ADD_OR_REMOVE) + 1e-12
    assert tally.fits((vectors.sum(0)[None] * ONE).long().repeat(2, 1), torch.tensor([2, 2]))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.lists(ANYTHING, min_size=12, max_size=12), st.lists(ANYTHING, min_size=9, max_size=9))
def test_one_record_moves_errors_by_at_most_the_stated_bound_whatever_the_model_and_the_cut_are(targets, numbers, sent):
    cut, values = Cut.of_flat(torch.tensor(sent[: 3 * targets])), torch.tensor(numbers)
    outputs, target = values[: 2 * targets].reshape(2, targets), values[6 : 6 + 2 * targets].reshape(2, targets)
    for tally in (RegressionSums(2, targets), RegressionSums(2, targets, cut)):
        vectors = tally.vectors(outputs, target)
        assert float(torch.linalg.vector_norm(vectors[0] - vectors[1])) <= tally.moved + 1e-9
        assert tally.fits((vectors.sum(0)[None] * ONE).floor().long().repeat(2, 1), torch.tensor([2, 2]))


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.floats(0, 0.25), st.floats(0, 1), st.floats(0, 1))
def test_sums_of_errors_give_back_what_they_were_made_of(mean, variance, target, output):
    """Of one record: the difference of its squared errors to a constant's at the centre, and its square, both cut."""
    cut = Cut.about([mean], [variance])
    values = RegressionSums(1, 1, cut).vectors(torch.tensor([[output]]), torch.tensor([[target]]))[0] / torch.tensor(
        [1.0, 0.25, 0.5, 0.5, *[0.25] * BINS], dtype=torch.float64
    )
    wanted = min(max(np.float32(target) - mean, -cut.targets[0]), cut.targets[0])
    said = min(max(np.float32(output) - mean, -cut.answers[0]), cut.answers[0])
    close = {"abs": 1e-6 * cut.width + 1e-9}
    assert cut.least + cut.width * float(values[0]) == pytest.approx(wanted**2 - (wanted - said) ** 2, **close)
    assert cut.least**2 * float(values[1]) == pytest.approx((wanted**2 - (wanted - said) ** 2) ** 2, **close)
    assert cut.square * float(values[2]) == pytest.approx(wanted**2, **close)
    assert float(values[4:].sum()) == 1
    assert Cut.of_flat(cut.flat()) == cut and cut.answers <= cut.targets


@pytest.mark.parametrize("targets", [1, 2])
def test_the_bounds_are_nearly_met_by_the_worst_records_of_a_search(targets):
    apart = {2: ([[0.9], [0.1]], 2.5), 3: ([[0.9, 0.1, 0.0], [0.1, 0.5, 0.4]], 2.75)}
    for classes, (outputs, square) in apart.items():
        counts = Counts(2, classes)
        found = counts.vectors(torch.tensor(outputs), torch.tensor([1, 1]))
        assert counts.moved == pytest.approx(math.sqrt(square))
        assert float(torch.linalg.vector_norm(found[0] - found[1])) == pytest.approx(counts.moved)
    line = torch.linspace(0, 1, 21)
    outputs, target = (
        numbers.reshape(-1, 1).repeat(1, targets) for numbers in torch.meshgrid(line, line, indexing="ij")
    )
    for cut in (None, Cut.about([0.3] * targets, [0.01] * targets), Cut.about([0.6] * targets, [0.04] * targets)):
        tally = RegressionSums(2, targets, cut)
        worst = float(torch.cdist(*[tally.vectors(outputs, target)] * 2).max())
        assert 0.85 * tally.moved <= worst <= tally.moved + 1e-9


@pytest.mark.parametrize("targets", [1, 3])
def test_the_bound_counts_every_number_that_is_summed(targets):
    """A number of its own may go from 0 to its weight; targets together as one of them, and two counts at once."""
    tally = RegressionSums(1, targets)
    assert len(tally.weights) == tally.width
    difference, spread, square, *others = tally.weights.tolist()
    assert tally.moved**2 == pytest.approx(
        difference**2 + spread**2 + square**2 + others[0] ** 2 + (2 * others[-1] ** 2 if targets == 1 else 0)
    )


def test_counts_that_no_such_records_make_do_not_fit():
    tally, records = Counts(2, 2), torch.tensor([3, 2])
    target, outputs = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([[0.2], [0.7], [0.1], [0.1], [0.3]])
    right = tally.vectors(outputs, target)
    right = (torch.stack([right[:3].sum(0), right[3:].sum(0)]) * ONE).long()
    assert right[:, :4].tolist() == [[ONE, ONE, ONE, 0], [0, 0, 2 * ONE, 0]] and tally.fits(right, records)
    assert not tally.fits(right + 1, records) and not tally.fits(2 * right, records)
    for first, second in ((0, 1), (4 + 7, 4 + 10)):  # below 0, and more of a class in one part than in the other
        moved = right.clone()
        moved[0, first], moved[0, second] = moved[0, first] - 2 * ONE, moved[0, second] + 2 * ONE
        assert not tally.fits(moved, records)
    other = right.clone()
    other[0, 4:] = other[0, 4:].roll(len(CHANCES) - 1)
    assert not tally.fits(other, records)
    several, outputs = Counts(1, 3), torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    right = (several.vectors(outputs, torch.tensor([0, 2])).sum(0, keepdim=True) * ONE).long()
    assert several.fits(right, torch.tensor([2]))
    right[0, -several.lengths[-1] :] = right[0, -several.lengths[-1] :].roll(len(CHANCES) - 1)
    assert not several.fits(right, torch.tensor([2]))
    moments = RegressionSums(1, 1)
    sums = torch.zeros(1, moments.width, dtype=torch.int64)
    sums[0, -BINS] = 2 * ONE // 4
    assert moments.fits(sums, torch.tensor([2])) and not moments.fits(sums, torch.tensor([3]))
    sums[0, 0] = 3 * ONE
    assert not moments.fits(sums, torch.tensor([2]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=8, max_size=8), st.integers(0, 40), st.integers(1, 40))
def test_counts_are_moved_alike_to_what_is_public_and_never_cut(values, one, other):
    records, seen = np.array([one, other]), np.array(values).reshape(2, 4)
    found = as_many(seen, records)
    assert found.sum(-1) == pytest.approx(records, abs=1e-9)
    assert (found - seen)[1] == pytest.approx((found - seen)[1, 0])
    assert np.ptp((found - seen)[0]) == pytest.approx(0, abs=1e-9) or one == 0


def test_counts_without_noise_are_as_they_are():
    counts = np.array([[3.0, 1.0, 0.0, 6.0], [2.0, 2.0, 5.0, 0.0]])
    assert as_many(counts, np.array([10, 9])) == pytest.approx(counts)


SHARES = np.array([[0.35, 0.05, 0.1, 0.5], [0.5, 0.1, 0.2, 0.2]])
RARE = np.array([[0.9, 0.06, 0.03, 0.01], [0.95, 0.0, 0.04, 0.01]])


def _released(shares, records, sigma: float, law: np.random.Generator) -> Tallied:
    counts = np.stack([law.multinomial(n, share) for n, share in zip(records, shares, strict=True)])
    scored = np.zeros((len(counts), 2, len(CHANCES) - 1))
    scored[:, 0, 7], scored[:, 0, 2], scored[:, 1, 2], scored[:, 1, 7] = counts.T
    counts = np.concatenate([counts, SCORED * scored.reshape(len(counts), -1)], axis=1)
    noised = counts + law.normal(size=counts.shape) * sigma
    return Tallied(noised, sigma, np.array(records), 3, 0, 1.0, round=1)


@pytest.mark.parametrize(
    ("shares", "records", "sigma"),
    [
        (SHARES, (400, 400), 0.0),
        pytest.param(SHARES, (400, 400), 10.0, marks=pytest.mark.slow),
        pytest.param(SHARES, (30, 60), 3.0, marks=pytest.mark.slow),
        (RARE, (300, 80), 8.0),
    ],
)
def test_printed_intervals_hold_the_law_that_records_are_drawn_from_as_often_as_they_say(shares, records, sigma):
    """The truth is the law: 95 % means 90 to 99, of counts that noise makes negative, too."""
    task, tally, times, held = Problem.from_experiment(small()), Counts(2, 2), 200, {}
    law = np.random.default_rng(7)
    table = shares.reshape(1, 2, 2, 2) * np.array(records)[:, None, None]
    truth = {name: float(value[0]) for name, value in metrics_of_tables(table).items()}
    selected, right = shares[:, [1, 3]].sum(1), shares[:, [0, 3]].sum(1)
    constant = table[0].sum((0, 2)) / sum(records)
    for _ in range(times):
        found = held_out_of(task, tally, _released(shares, records, sigma, law))
        parts = [(name, each, truth[name]) for name, each in found.quality.intervals.items() if name in truth]
        parts.append(("gain", found.quality.gain[1:], truth["accuracy"] - constant.max()))
        for place, own in enumerate(found.by_group.around.values()):
            rates = {
                "selection_rate": selected,
                "accuracy": right,
                "true_positive_rate": shares[:, 3] / shares[:, 2:].sum(1),
            }
            parts += [(f"{name} of {place}", own[name], float(true[place])) for name, true in rates.items()]
        for name, (low, high), true in parts:
            held[name] = held.get(name, 0) + int(low <= true <= high)
    assert all(count >= 0.90 * times for count in held.values()), held
    assert all(held[name] <= 0.995 * times for name in held if name.startswith(("accuracy", "selection"))), held


def test_more_noise_means_wider_intervals():
    task, table = Problem.from_experiment(small()), _released(SHARES, (400, 400), 0.0, np.random.default_rng(0)).values
    widths = []
    for sigma in (0.0, 10.0, 40.0):
        found = held_out_of(task, Counts(2, 2), Tallied(table, sigma, np.array([400, 400]), 3, 0, 1.0, round=1))
        low, high = found.quality.intervals["accuracy"]
        widths.append(high - low)
    assert widths[0] < widths[1] < widths[2] / 2


CONSTANT, EVEN, LIKELY = [0.963, 0.0, 0.037, 0.0], [0.25, 0.25, 0.25, 0.25], [0.45, 0.05, 0.45, 0.05]


@pytest.mark.parametrize(
    ("records", "sigma", "shares"),
    [
        *((150, 8.0, CONSTANT), (60, 0.0, EVEN), (60, 0.0, LIKELY), (2000, 20.0, EVEN)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((150, 8.0, EVEN), (150, 8.0, LIKELY), (60, 0.0, CONSTANT))
        ),
        *(pytest.param(2000, 20.0, shares, marks=pytest.mark.slow) for shares in (CONSTANT, LIKELY)),
    ],
)
def test_on_labels_of_pure_noise_hardly_a_run_is_called_better_than_a_constant(shares, records, sigma):
    """The class that is most frequent is chosen on the noised counts themselves, and makes no claim more likely."""
    task, law = Problem.from_experiment(small()), np.random.default_rng(3)
    claimed = 0
    for _ in range(200):
        found = held_out_of(task, Counts(1, 2), _released([shares], [records], sigma, law))
        claimed += found.quality.gain.above
        words = " ".join(warnings_of(metrics=found.metrics, quality=found.quality, records=records, **AFTER))
        assert ("constant" in words) != found.quality.gain.above
    assert claimed <= 5


def test_a_model_that_noise_hides_is_said_to_be_one_answer_perhaps():
    task, law = Problem.from_experiment(small()), np.random.default_rng(1)
    said = []
    for shares in ([0.963, 0.0, 0.037, 0.0], [0.5, 0.1, 0.1, 0.3]):
        found = held_out_of(task, Counts(2, 2), _released([shares] * 2, [300, 300], 8.0, law))
        assert found.quality.one_answer == (shares[1] == 0)
        said.append(" ".join(warnings_of(metrics=found.metrics, quality=found.quality, records=600, **AFTER)))
    assert "may answer the same for every record" in said[0] and "cannot be told from a constant" in said[0]
    assert "constant" not in said[1] and "may answer" not in said[1]


AFTER = {"start": None, "epsilon": 1.0}


CUT = Cut.about([0.41], [0.055**2])
"""As the noised moments of 4,000 records might say it, of targets about 0.4 that vary by 0.06."""


def _numbers(target, outputs, sigma: float, law: np.random.Generator, cut: Cut | None) -> Tallied:
    """Noised sums of a regression of one number, from targets and outputs (n,)."""
    values = (torch.from_numpy(np.clip(numbers, 0, 1).reshape(-1, 1)) for numbers in (outputs, target))
    sums = RegressionSums(1, 1, cut).vectors(*values).sum(0, keepdim=True).numpy()
    sums = sums + law.normal(size=sums.shape) * sigma
    return Tallied(sums, sigma, np.array([len(target)]), 3, 0, 1.0, 1, cut)


@pytest.mark.parametrize("cut", [None, CUT], ids=["whole", "cut"])
@pytest.mark.parametrize(("records", "sigma", "wrong"), [(100, 8.0, 0.3), (1000, 8.0, 0.3), (400, 5.0, 0.0)])
def test_intervals_of_noised_sums_hold_the_true_errors_and_no_constant_is_called_better(records, sigma, wrong, cut):
    task, law, times = Problem.from_experiment(small()), np.random.default_rng(5), 200
    held, claimed = dict.fromkeys(("model", "constant", "gain"), 0), 0
    many = law.normal(0.4, 0.06, 200_000)
    exact = held_out_of(task, RegressionSums(1, 1), _numbers(many, many * 0 + 0.4 + wrong, 0.0, law, cut)).quality
    constant, error = exact.constant["mean_squared_error"], exact.constant["mean_squared_error"] - exact.gain.value
    for _ in range(times):
        tallied = _numbers(law.normal(0.4, 0.06, records), np.full(records, 0.4 + wrong), sigma, law, cut)
        quality = held_out_of(task, RegressionSums(1, 1), tallied).quality
        known = {
            "model": (quality.intervals["mean_squared_error"], error),
            "constant": (quality.constant_intervals["mean_squared_error"], constant),
            "gain": (quality.gain[1:], constant - error),
        }
        for name, ((low, high), true) in known.items():
            held[name] += low <= true <= high
        claimed += quality.gain.above
    assert all(0.90 * times <= count for count in held.values()), held
    assert min(held.values()) <= 0.995 * times, held
    assert claimed <= 5


SKEWED = Cut.about([0.2], [0.2**2])
"""As moments say it of exponential targets of mean 0.2."""


@pytest.mark.parametrize("cut", [None, SKEWED], ids=["whole", "cut"])
def test_noised_sums_call_a_model_biased_if_its_mean_is_wrong_and_no_other_one(cut):
    """Bins of answers, cut targets, noise and draw: a difference of means is in its interval however skewed targets."""
    task, law, times = Problem.from_experiment(small()), np.random.default_rng(6), 200
    held, claimed = {0.0: 0, 0.35: 0}, {0.0: 0, 0.35: 0}
    for wrong in held:
        for _ in range(times):
            target = np.minimum(law.exponential(0.2, 1000), 1.0)
            tallied = _numbers(target, np.full(1000, 0.2 + wrong), 5.0, law, cut)
            bias = held_out_of(task, RegressionSums(1, 1), tallied).quality.bias
            held[wrong] += bias.around.low <= wrong <= bias.around.high
            claimed[wrong] += bias.around.low > 0 or bias.around.high < 0
    assert min(held.values()) >= 0.95 * times, held
    assert claimed[0.0] <= 0.05 * times and claimed[0.35] >= 0.95 * times, claimed


def test_another_constant_than_the_cut_s_centre_gains_nothing():
    task, law = Problem.from_experiment(small()), np.random.default_rng(2)
    target = np.linspace(0.35, 0.45, 2001)
    tallied = _numbers(target, np.full(2001, 0.4), 0.0, law, Cut.about([0.5], [0.01]))
    assert held_out_of(task, RegressionSums(1, 1), tallied).quality.gain.value == pytest.approx(0, abs=1e-12)


USELESS = {
    "the median of a skewed law": lambda target, law: np.full(len(target), float(np.median(target))),
    "answers of noise alone": lambda target, law: law.normal(target.mean(), target.std() / 2, len(target)),
    "far off": lambda target, law: np.full(len(target), 0.9),
    "right of all but a few, which it misses by far": lambda target, law: np.where(
        law.uniform(size=len(target)) < 0.3, target, target.mean() + 2 * target.std() * law.choice([-1, 1], len(target))
    ),
}


@pytest.mark.parametrize("name", USELESS)
@pytest.mark.parametrize(("records", "sigma"), [(200, 5.4), (4000, 5.4)])
def test_hardly_a_model_that_is_no_better_than_a_constant_is_called_better_of_a_skewed_target(name, records, sigma):
    """The claim is wrong one time in a hundred at most, by the square of what was cut: a median is no better there."""
    task, law, claimed, times = Problem.from_experiment(small()), np.random.default_rng(11), 0, 300
    for _ in range(times):
        target = np.clip(np.exp(law.normal(-2.5, 0.7, records)), 0, 1)
        cut = Cut.about([target.mean() + 0.01 * law.normal()], [target.var() * law.uniform(0.7, 1.4)])
        tallied = _numbers(target, USELESS[name](target, law), sigma, law, cut)
        claimed += held_out_of(task, RegressionSums(1, 1), tallied).quality.gain.above
    assert claimed <= 8


def test_a_model_that_explains_two_fifths_is_seen_to_beat_a_constant_on_a_thousand_records_where_targets_are_cut():
    task, law, claimed = Problem.from_experiment(small()), np.random.default_rng(3), {None: 0, CUT: 0}
    for _ in range(60):
        known = law.normal(0, 0.06, 1000)
        target = 0.4 + math.sqrt(0.4) * known + math.sqrt(0.6) * law.normal(0, 0.06, 1000)
        for cut in claimed:
            tallied = _numbers(target, 0.4 + math.sqrt(0.4) * known, 5.4, law, cut)
            claimed[cut] += held_out_of(task, RegressionSums(1, 1), tallied).quality.gain.above
    assert claimed[CUT] >= 57 and claimed[None] <= 12, claimed


def test_no_kept_records_are_no_metrics():
    task = Problem.from_experiment(small())
    none = Tallied(np.zeros((2, 24)), 1.0, np.array([0, 0]), 3, 0, 1.0, round=1)
    assert held_out_of(task, Counts(2, 2), none).metrics == {}


def _of_classes(classes: int) -> Problem:
    task = Problem.from_experiment(small())
    return replace(task, shape=replace(task.shape, classes=classes))


def _scored(records: int, sigma: float, law: np.random.Generator, classes: int = 2):
    """Noised sums of records of two groups whose probabilities are right, and these (n, d) with their classes (n,)."""
    logits = torch.from_numpy(law.normal(size=(records, 1 if classes == 2 else classes)))
    outputs = torch.sigmoid(1.5 * logits - 0.5) if classes == 2 else torch.softmax(1.5 * logits, dim=1)
    chances = torch.cat([1 - outputs, outputs], dim=1) if classes == 2 else outputs
    target = (chances.cumsum(1) < torch.from_numpy(law.random((records, 1)))).sum(1).clamp(max=classes - 1)
    vectors = Counts(2, classes).vectors(outputs, target)
    half = records // 2
    sums = torch.stack([vectors[:half].sum(0), vectors[half:].sum(0)]).numpy()
    sums = sums + sigma * law.normal(size=sums.shape)
    return Tallied(sums, sigma, np.array([half, records - half]), 3, 0, 1.0, round=1), outputs, target


@pytest.mark.parametrize(
    ("records", "sigma", "classes"),
    [
        pytest.param(600, 0.0, 2, marks=pytest.mark.slow),
        pytest.param(4000, 6.0, 2, marks=pytest.mark.slow),
        (1000, 8.0, 2),
        pytest.param(2000, 6.0, 3, marks=pytest.mark.slow),
    ],
)
def test_intervals_of_log_loss_and_of_groups_curves_hold_what_they_are_of(records, sigma, classes, monkeypatch):
    """The truth is of very many records, one by one: log loss, the class shares', and by group AUC and error."""
    monkeypatch.setattr(held_out_metrics, "load_class_names", lambda experiment: ())
    task, law, times, held = _of_classes(classes), np.random.default_rng(4), 50, {}
    _, outputs, target = _scored(200_000, 0.0, law, classes)
    y, shares = target.numpy(), np.bincount(target) / len(target)
    chances = torch.cat([1 - outputs, outputs], dim=1) if classes == 2 else outputs
    truth = {
        "loss": float(-chances.gather(1, target[:, None]).log().mean()),
        "shares": float(-shares @ np.log(shares)),
        "auc": float(np.mean([roc_auc_score(y == c, chances[:, c].numpy()) for c in range(classes)])),
        "calibration_error": 0.0,
    }
    for _ in range(times):
        tallied = _scored(records, sigma, law, classes)[0]
        found = held_out_of(task, Counts(2, classes), tallied)
        quality, group = found.quality, next(iter(found.by_group.around.values()))
        known = {"loss": quality.intervals["loss"], "shares": quality.constant_intervals["loss"]}
        for name in ("auc", "calibration_error"):
            known |= {name: quality.intervals[name], f"{name} of a group": group[name]}
        for name, (low, high) in known.items():
            wanted = truth[name.removesuffix(" of a group")]
            held[name] = held.get(name, 0) + int(low - 0.02 * name.startswith("calibration_error") <= wanted <= high)
    assert all(count >= 0.9 * times for count in held.values()), held


@pytest.mark.parametrize("classes", [2, 3])
def test_without_noise_log_loss_and_areas_are_nearly_those_of_records_one_by_one(classes, monkeypatch):
    monkeypatch.setattr(held_out_metrics, "load_class_names", lambda experiment: ())
    task = _of_classes(classes)
    tallied, outputs, target = _scored(100_000, 0.0, np.random.default_rng(1), classes)
    found = held_out_of(task, Counts(2, classes), tallied)
    chances = torch.cat([1 - outputs, outputs], dim=1) if classes == 2 else outputs
    exact = float(-chances.gather(1, target[:, None]).log().mean())
    assert found.metrics["loss"] == pytest.approx(exact, abs=0.01)
    assert found.metrics["loss"] < found.quality.constant["loss"]
    area = np.mean([roc_auc_score(target.numpy() == c, chances[:, c].numpy()) for c in range(classes)])
    for row in (found.metrics, *found.by_group.numbers.values()):
        assert row["auc"] == pytest.approx(area, abs=0.015) and row["calibration_error"] < 0.03


def test_probabilities_of_kept_records_that_are_worse_than_the_class_shares_are_warned_of():
    task, law = Problem.from_experiment(small()), np.random.default_rng(2)
    target = torch.from_numpy(law.integers(0, 2, 2000))
    vectors = Counts(2, 2).vectors(torch.full((2000, 1), 0.99, dtype=torch.float64), target)
    sums = torch.stack([vectors[:1000].sum(0), vectors[1000:].sum(0)]).numpy() + 5.0 * law.normal(size=(2, 24))
    found = held_out_of(task, Counts(2, 2), Tallied(sums, 5.0, np.array([1000, 1000]), 3, 0, 1.0, round=1))
    words = " ".join(warnings_of(metrics=found.metrics, quality=found.quality, records=2000, **AFTER))
    assert "probabilities are worse than the class shares alone: log loss" in words


@pytest.mark.parametrize("more", [-130.0, -100.0, -3.0, 0.0, 99.0, 107.0, 300.0])
def test_an_interval_of_a_gain_never_ends_below_its_beginning(more):
    for noise in (0.0, 5.0, 80.0):
        found = noised_gain(more, abs(more) + noise, 100, noise)
        assert -1 <= found.low <= found.high <= 1


@pytest.mark.parametrize(("hits", "misses", "most"), [(30.0, 70.0, math.inf), (0.4, 5.0, 9.0), (-0.5, 8.0, math.inf)])
@pytest.mark.parametrize("noise", [[[9.0, 0.0], [0.0, 9.0]], [[2.0, -1.5], [-1.5, 4.0]], [[25.0, 6.0], [6.0, 1.5]]])
def test_a_noised_rate_holds_the_shares_that_a_loop_over_all_of_them_holds(hits, misses, most, noise):
    def spread(*weights: float) -> float:
        return math.sqrt(max(0.0, np.array(weights) @ np.array(noise) @ np.array(weights)))

    size, z = min(most, max(0.0, hits + misses) + spread(1.0, 1.0)), intervals.normal(intervals.LEVEL)
    held = [
        share
        for share in np.linspace(0, 1, 1001)
        if abs((1 - share) * hits - share * misses)
        <= z * math.hypot(math.sqrt(size * share * (1 - share)), spread(1 - share, -share))
    ]
    assert tuple(noised_rate(hits, misses, spread, most).at(intervals.LEVEL)) == pytest.approx(
        (held[0], held[-1]), abs=1.1e-3
    )
