"""Laws of mechanisms: an accountant takes the noises that it lists, and an epsilon says whose word it is."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw._tools.registry import Unknown
from fedsw._tools.settings import ExperimentError
from fedsw.experiment import parse_experiment
from fedsw.privacy.accountants import ACCOUNTANTS, doubt, require_noise, word_of
from fedsw.privacy.accounting import Charge, Ledger, Step, accountant
from fedsw.privacy.accounting.lifetime import Cost, DatasetAccount, LimitReached
from fedsw.privacy.masks import Share
from fedsw.privacy.mechanisms import MECHANISMS, mechanism, noised
from fedsw.privacy.release import Bounded, Part, pay, release, release_paid, release_share
from fedsw.privacy.sensitivity import Sensitivity
from tests.doors import Unaccounted
from tests.privacy.test_release import Fixed
from tests.runs.single.examples import model, records
from tests.runs.single.test_trainer import CLIP, OBJECTIVE, plan, trainer

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_noise.py"
VALUE = torch.zeros(400, dtype=torch.float64)
CHARGES = [Charge("A", 1.0, 1.0)]
BASIC = ("gaussian", "laplace")


@pytest.fixture
def known(monkeypatch):
    """The noises and accountants that there are; what a test registers is gone after it."""
    monkeypatch.setattr(MECHANISMS, "_things", dict(MECHANISMS._things))
    monkeypatch.setattr(ACCOUNTANTS, "_things", dict(ACCOUNTANTS._things))


def wide(values, scale, stream):
    return noised(values, 2 * scale, stream)


def uniform(values, scale, stream):
    return values + torch.from_numpy(stream.normals(len(values.reshape(-1)))).clamp(-1, 1).reshape(values.shape) * scale


def bounded(norm="l2", **more) -> Bounded:
    return Bounded(VALUE, Sensitivity(1.0, "stated", norm=norm), charges=CHARGES, **more)


def create(path, **asked) -> Ledger:
    return Ledger.create(path, groups=("A",), delta=1e-5, epsilon=20.0, nominal=True, **asked)


def test_every_shipped_accountant_says_which_noises_it_takes_and_takes_no_other():
    takes = {name: {n: word for n, word in each.takes.items() if n in BASIC} for name, each in ACCOUNTANTS.items()}
    assert all(noise in MECHANISMS for each in dict(ACCOUNTANTS.items()).values() for noise in each.takes)
    assert takes == dict.fromkeys(ACCOUNTANTS, {"gaussian": "proven"}) | {"laplace": {"laplace": "proven"}}
    assert {name for name, each in ACCOUNTANTS.items() if each.pure} == {"laplace"}
    for name, each in ACCOUNTANTS.items():
        for noise in (*BASIC, "uniform", ""):
            if noise not in each.takes:
                with pytest.raises(Unknown, match=f"accountant '{name}' is of .*this noise is '{noise}'"):
                    require_noise(name, noise)
        require_noise(name, "none")
    assert MECHANISMS.get("gaussian").accountants["pld"] == "proven"
    assert MECHANISMS.get("laplace").accountants == {"laplace": "proven"}


def test_a_noise_that_no_accountant_lists_leaves_under_none(known, tmp_path):
    """Uniform noise has delta of at least .048 at every epsilon, and would print .5945 under "pld"."""
    mechanism("uniform", accountants=())(uniform)
    with create(tmp_path / "l.sqlite") as ledger:
        with pytest.raises(ValueError, match="'pld' is of gaussian.* noise, and this noise is 'uniform'"):
            pay(ledger, 1, 0, CHARGES, 4.0, [Part("value", 1.0, 4.0, "uniform")])
        with pytest.raises(ValueError, match="mechanism 'uniform' and the ledger 'gaussian'"):
            release(bounded(), Fixed(4.0, mechanism="uniform"), ledger)
        assert ledger.entries() == []
    with pytest.raises(Unknown, match="this noise is 'uniform'"):
        create(tmp_path / "other.sqlite", mechanism="uniform")
    assert not (tmp_path / "other.sqlite").exists()


def test_a_noise_that_adds_nothing_is_none(known):
    for law in (
        lambda values, scale, stream: values.clone(),
        lambda values, scale, stream: values + torch.nan,
        lambda values, scale, stream: noised(values, scale, stream).float(),
        lambda values, scale, stream: noised(values, scale, stream)[1:],
    ):
        with pytest.raises(ValueError, match="'quiet'"):
            mechanism("quiet", accountants=["pld"])(law)
    assert "quiet" not in MECHANISMS and "quiet" not in ACCOUNTANTS.get("pld").takes
    with pytest.raises(Unknown, match="accountant is 'nobody'"):
        mechanism("quiet", accountants=["nobody"])(wide)
    with pytest.raises(ValueError, match="there is a mechanism 'gaussian'"):
        mechanism("gaussian", accountants=["pld"])(wide)


@pytest.mark.parametrize(("stated", "said"), [(True, "stated by the user"), (False, "not stated that")])
def test_an_epsilon_of_ones_own_noise_says_whose_word_it_is(known, tmp_path, stated, said):
    mechanism("wide", accountants=["pld"], upper_bound=stated)(wide)
    assert word_of("pld", "wide") == ("stated" if stated else "none") and word_of("pld", "gaussian") == "proven"
    assert MECHANISMS.get("wide").accountants == {"pld": word_of("pld", "wide")}
    assert said in doubt("pld", "wide") and doubt("pld", "gaussian") == ""
    own = plan(mechanism="wide", seed=None)
    assert own.guarantee.startswith("No guarantee") and said in own.guarantee and "noise             wide" in str(own)
    with Ledger.create(tmp_path / "l.sqlite", own) as ledger:
        assert ledger.mechanism == "wide" and not ledger.guarantee
        (batch, *_) = own.batches(records(), ledger=ledger)
        released = release(OBJECTIVE.gradient(model(), batch, CLIP), own, ledger)
        assert released.spent > 0
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        assert ledger.mechanism == "wide" and not ledger.guarantee
        assert set(Cost.of_ledger(ledger).steps) == {Step(0.5, math.inf)}  # an account takes nobody's word


def test_an_account_is_asked_for_a_noise_of_ones_own_as_for_none_before_a_round(known, tmp_path, monkeypatch):
    mechanism("wide", accountants=["pld"], upper_bound=True)(wide)
    own = plan(mechanism="wide", seed=None)
    assert own.reserved() == {Step(0.5, math.inf): own.rounds}
    assert all(math.isfinite(step.mu) for step in plan(seed=None).reserved())
    account = tmp_path / "people.account"
    DatasetAccount(tmp_path, "people").limit(50.0, 1e-3)
    monkeypatch.setattr("fedsw.runs.single.training_plan.draw_batch", lambda *_, **__: pytest.fail("a batch was drawn"))
    with pytest.raises(LimitReached, match="data set 'people' would reach"):
        trainer(tmp_path / "trained", own, account=account).fit(records())
    assert not (tmp_path / "trained" / "ledger.sqlite").exists()


def test_a_plan_of_l2_bounds_takes_no_laplace_noise(known):
    with pytest.raises(ValueError, match="l2 norm, and laplace noise is in proportion to l1 bounds"):
        plan(mechanism="laplace", accountant="laplace")
    mechanism("long", accountants=["pld"], norm="l1")(wide)
    with pytest.raises(ValueError, match="l2 norm, and long noise is in proportion to l1 bounds"):
        plan(mechanism="long")
    assert plan(mechanism="laplace", accountant="laplace", epsilon=math.inf).multiplier == 0.0


def test_ones_own_noise_is_of_the_scale_that_it_was_paid_for(known):
    mechanism("wide", accountants=["pld"])(wide)
    paid = pay(Unaccounted("wide"), 1, 0, CHARGES, 3.0, [Part("sum", 1.0, 3.0, "wide")])
    value = Bounded(torch.zeros(20_000, dtype=torch.float64), Sensitivity(1.0, "any"))
    assert float(release_paid(value, paid, "sum", Stream.seeded(1)).value.std()) == pytest.approx(6.0, rel=0.03)


def test_the_example_says_that_its_epsilon_is_stated_by_the_user(known):
    spec = importlib.util.spec_from_file_location("own_noise", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main().startswith("No guarantee but by the user's word: that the accountant pld bounds what 'wide'")


def test_values_with_a_noise_of_ones_own_leave_one_by_one(known):
    """Nobody says how what two of them cost adds up; nor do costs of two noises."""
    mechanism("wide", accountants=["pld"])(wide)
    for noises in (("wide", "wide"), ("gaussian", "laplace"), ("gaussian", "wide")):
        parts = [Part(str(i), 1.0, 9.0, noise) for i, noise in enumerate(noises)]
        with pytest.raises(ValueError, match="nothing was charged"):
            pay(Unaccounted(noises[0]), 1, 0, CHARGES, 0.1, parts)
    exact = [Part("a", 1.0, 9.0, "wide"), Part("b", 0.0, 0.0, "none")]
    pay(Unaccounted("wide"), 1, 0, CHARGES, 9.0, exact)
    with pytest.raises(ValueError, match="costs mu = inf"):
        pay(Unaccounted("wide"), 1, 0, CHARGES, 9.0, [exact[0], Part("b", 1.0, 0.0, "none")])


def test_ones_own_accountant_takes_what_it_lists(known, tmp_path):
    accountant("mine", note="mine", takes=["gaussian"])(lambda steps, delta: 1.0)
    accountant("others", note="mine", takes=["wide"])(lambda steps, delta: 1.0)
    with pytest.raises(ValueError, match="takes no noise"):
        accountant("empty", note="mine", takes=[])(lambda steps, delta: 1.0)
    with pytest.raises(ValueError, match="covers is 'everything'"):
        accountant("vague", note="mine", covers="everything")(lambda steps, delta: 1.0)
    mechanism("wide", accountants=["mine"], upper_bound=True)(wide)
    assert create(tmp_path / "one.sqlite", accountant="mine", mechanism="wide").mechanism == "wide"
    assert create(tmp_path / "two.sqlite", accountant="others").mechanism == "wide"
    with pytest.raises(Unknown, match="'others' is of wide noise"):
        create(tmp_path / "three.sqlite", accountant="others", mechanism="gaussian")
    assert {word_of(name, "wide") for name in ("mine", "others")} == {"none"}


def test_a_bound_in_l2_does_not_leave_with_laplace_noise(tmp_path):
    """A vector of n equal numbers moves sqrt(n) times as far in l1 as in l2."""
    with create(tmp_path / "l.sqlite", accountant="laplace") as ledger:
        plan = Fixed(1.0, mechanism="laplace", accountant="laplace")
        with pytest.raises(ValueError, match="bounded in l2 norm, and laplace noise is in proportion to l1"):
            release(bounded(), plan, ledger)
        assert ledger.entries() == []
        release(bounded("l1"), plan, ledger)
    with create(tmp_path / "g.sqlite") as ledger:
        release(bounded("l1"), Fixed(4.0), ledger)  # what is within 1 in l1 is in l2
    with pytest.raises(ValueError, match="norm is 'l0'"):
        Sensitivity(1.0, "stated", norm="l0")
    with pytest.raises(ValueError, match="l1 and l2 norm do not add"):
        Sensitivity(1.0, "stated", norm="l1") + Sensitivity(1.0, "stated")


def test_plan_and_ledger_say_the_same_of_a_release(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite", groups=("A",), delta=1e-5, epsilon=20.0) as secret:
        with pytest.raises(ValueError, match="has a seed.*not called nominal.*Nothing was charged"):
            release(bounded(), Fixed(4.0), secret)
        for other in ({"accountant": "rdp-wor"}, {"mechanism": "laplace"}, {"relation": "add-or-remove-one"}):
            with pytest.raises(ValueError, match=r"[Nn]othing was charged"):
                release(bounded(), Fixed(4.0, nominal=False, **other), secret)
        assert secret.entries() == []
        release(bounded(), Fixed(4.0, nominal=False), secret)


def test_a_share_is_of_gaussian_noise_that_every_client_paid_for():
    noises = ("gaussian", "laplace")
    paid = [pay(Unaccounted(noise), 1, 0, CHARGES, 1.0, [Part("sum", 1.0, 1.0, noise)]) for noise in noises]
    value = Bounded(torch.zeros(4, dtype=torch.float64), Sensitivity(1.0, "any", norm="l1"))
    with pytest.raises(ValueError, match="or of another"):
        release_share(value, paid, "sum", Share(2, 2, 2.0**-10, 1.0), np.zeros(4, np.uint64), Stream.seeded(1))


def test_an_experiment_whose_accountant_does_not_take_its_noise_is_refused_at_load(known):
    accountant("mine", note="mine", takes=["wide"])(lambda steps, delta: 1.0)
    with pytest.raises(ExperimentError, match="'mine' takes wide noise, and what trust 'central' releases has 'gauss"):
        parse_experiment({"name": "x", "privacy": {"accountant": "mine"}})
