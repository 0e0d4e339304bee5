"""Laws of what crosses between the host and the device in a round: on a pretended device, so on any machine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedsw._tools.settings import FederationError
from fedsw.experiment import parse_experiment
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import node_configs
from fedsw.federation.server.federation import Job, federate
from fedsw.federation.trust.central.rounds import Rounds
from fedsw.learning.tasks.objective import ClippedObjective
from fedsw.learning.tasks.problem import Problem
from fedsw.runs import checkpoint
from fedsw.runs.evaluation.evaluator import Evaluator
from tests.federations import SMALL, Federation, digits_for_images
from tests.laws.runs.test_matching_runs import ADAPTATION, AUTOENCODER, GENERATOR
from tests.pretended import ELSEWHERE, DirectGrid, Pretended

SLOW = pytest.mark.slow

SERVER, OUTPUTS, GRADIENTS = "server", "train.outputs", "train.gradients"
ROUNDS = 2
ONE_SITE = (
    "federation.clients=4",
    "federation.sites=1",
    f"training.rounds={ROUNDS}",
    "seed=5",
    f"evaluate_every={ROUNDS}",
)
ALSO = (
    "objective.task=tests.runs.single.examples:ScoreTask",
    "model.kind=tests.runs.single.examples:TwoHeads",
    "objective.alpha=0.3",
    "objective.also=[{penalty='equality-of-odds', weight=0.2}, {penalty='prior-matching', weight=0.4, outputs='codes',"
    " dimension=2, radius=0.9, jacobian=0.5, prior_radius=0.8}]",
    "slicing.directions=5",
)


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """Runs an experiment on the pretended device; gives what crossed by part, and the model that it ended with."""
    runs = iter(range(100))

    def ran(*overrides: str, base=SMALL):
        pretended, folder = Pretended(), tmp_path / f"run{next(runs)}"
        experiment = parse_experiment(base, [*ONE_SITE, *overrides])
        settings = experiment.federation
        with monkeypatch.context() as patched:
            patched.setattr(Problem, "device", property(lambda task: ELSEWHERE))
            patched.setattr(Problem, "accounting_device", property(lambda task: torch.device("cpu")))
            _label(patched, pretended, Rounds, "run", SERVER)
            _label(patched, pretended, Evaluator, "metrics", "evaluation")
            configs = node_configs(settings.sites or settings.clients, folder / "clients")
            with pretended.entered():
                federate(DirectGrid(client_app, configs, pretended), Job(experiment, folder))
        return pretended.seen, checkpoint.load(folder).theta

    return ran


def _label(patched, pretended, owner, name, part):
    whole = getattr(owner, name)

    def counted(*args, **kwargs):
        with pretended.part(part):
            return whole(*args, **kwargs)

    patched.setattr(owner, name, counted)


def _each_round(seen, part):
    """Copies up, copies down, reads and waits of one round; the same in all rounds, or the test fails."""
    counts = seen[part].counts
    assert all(count % ROUNDS == 0 for count in counts)
    return tuple(count // ROUNDS for count in counts)


@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("data.records=1500",), marks=SLOW),
        ("training.batch_fraction=0.6",),
        pytest.param(("federation.clients=40",), marks=SLOW),
        ("model.kind=mlp", "model.hidden=[5]", "training.precision=float64"),
        ("objective.penalty=equality-of-odds",),  # four strata
        pytest.param(("slicing.ties=stable",), marks=SLOW),
        ("privacy.trust=none",),
    ],
    ids=lambda more: more[0] if more else "as it is",
)
def test_what_crosses_in_a_round_grows_with_nothing_but_the_sites(pretend, more):
    seen, _ = pretend(*more)
    assert _each_round(seen, SERVER) == (3, 3, 0, 0)  # outputs, directions, contribution; cotangents, verdict, sum
    assert _each_round(seen, OUTPUTS) == (3, 1, 0, 0)  # model, features, targets; outputs
    assert _each_round(seen, GRADIENTS) == (2, 1, 0, 0)  # cotangents, the terms' bounds; contribution
    assert not seen["evaluation"].down


@pytest.mark.parametrize("directions", [3, 60])
def test_directions_cross_in_one_piece_however_many_they_are(pretend, directions):
    codes = ("objective.task=representation", "model.kind=encoder-decoder", "model.latent=3")
    seen, _ = pretend(*codes, f"slicing.directions={directions}")
    assert _each_round(seen, SERVER) == (3, 3, 0, 0)
    assert seen[SERVER].up[1] == (3, directions)


def test_a_site_more_brings_one_contribution_more_and_no_read(pretend):
    seen, _ = pretend("federation.sites=4")
    assert _each_round(seen, SERVER) == (2 + 4, 3, 0, 0)
    assert (4,) in seen[SERVER].down  # the verdicts on all sites at once


def test_a_batch_in_pieces_sends_records_piece_by_piece_and_results_in_one(pretend):
    seen, _ = pretend("training.micro_batch=40", "privacy.sampling=stratified")  # 118 records: three pieces
    assert _each_round(seen, SERVER) == (3, 3, 0, 0)
    assert _each_round(seen, OUTPUTS) == (1 + 3 * 2, 1, 0, 0)
    assert _each_round(seen, GRADIENTS) == (1 + 3 * 3, 1, 0, 0)


def test_only_the_unsafe_metric_reads_a_number_once_a_round(pretend):
    seen, _ = pretend("unsafe_metrics=true")
    assert _each_round(seen, GRADIENTS) == (2, 1, 1, 0)
    assert _each_round(seen, SERVER) == (3, 3, 0, 0)


def test_a_record_whose_outputs_overflow_crosses_as_any_other(pretend, monkeypatch):
    """The clip, the projection and the checks neither look at a value nor branch on it: nothing waits for one.

    A run stops between rounds once its released model has diverged; here it goes on, as the best of several runs does.
    """
    monkeypatch.setattr(Problem, "diverged", lambda task, theta: None)
    seen, _ = pretend("training.learning_rate=1e30", "training.optimizer=adam")
    assert [_each_round(seen, part)[2:] for part in (SERVER, OUTPUTS, GRADIENTS)] == [(0, 0)] * 3
    assert _each_round(seen, SERVER)[:2] == (3, 3)


def test_contributions_above_their_bound_are_seen_without_a_read(pretend, monkeypatch):
    monkeypatch.setattr(Problem, "most_pulled", lambda *given: 1e-30)
    with pytest.raises(FederationError, match="above its clip bound"):
        pretend()


def _reading(values: Tensor) -> Tensor:
    float(values.sum())
    return values


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (_reading, (3, 3, 2, 0)),  # one for each of the two groups
        (lambda values: values.cpu().to(ELSEWHERE), (5, 5, 0, 0)),
        (lambda values: values[values[:, 0] > -9], (3, 3, 0, 2)),
    ],
    ids=["a number is read", "a round trip", "a mask"],
)
def test_what_somebody_adds_to_a_round_is_counted(pretend, monkeypatch, change, counts):
    balls = ClippedObjective.in_balls
    monkeypatch.setattr(ClippedObjective, "in_balls", lambda task, heads: change(balls(task, heads)))
    seen, _ = pretend()
    assert _each_round(seen, SERVER) == counts


def test_a_host_tensor_in_the_devices_arithmetic_is_refused_as_an_accelerator_refuses_it():
    with (pretended := Pretended()).entered():
        there = torch.ones(3, dtype=torch.float64).to(ELSEWHERE)
        assert (there * torch.tensor(2.0)).sum().cpu() == 6  # a number may come from the host
        with pytest.raises(AssertionError, match="of the device and of the host"):
            there * torch.ones(3)
    assert pretended.seen["outside"].counts == (1, 1, 0, 0)


@pytest.mark.parametrize(
    "base",
    [
        pytest.param((SMALL, "model.kind=mlp", "model.hidden=[5]"), marks=SLOW),
        (SMALL, "objective.penalty=equality-of-odds", "federation.sites=2", "training.micro_batch=40"),
        (SMALL, *ALSO),
        pytest.param((GENERATOR, "objective.protected=both"), marks=SLOW),
        pytest.param((AUTOENCODER,), marks=SLOW),
        (ADAPTATION, "training.batch_fraction=0.1"),
    ],
    ids=["classes", "odds", "several penalties", "generator", "autoencoder", "domain"],
)
def test_a_run_ends_where_the_processors_ends(pretend, monkeypatch, tmp_path, base):
    first, *more = base
    digits_for_images(monkeypatch)
    _, there = pretend("training.precision=float64", *more, base=first)
    folder = Federation(tmp_path / "host")
    folder.run(parse_experiment(first, [*ONE_SITE, "training.precision=float64", *more]))
    here = checkpoint.load(folder.folder / "run1").theta
    torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-12)
