"""The one door: charged, then noised, then handed out; and there is no other."""

from __future__ import annotations

import ast
import copy
import math
import pickle
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsw
from fedsw._tools.randomness import Stream
from fedsw.experiment import parse_experiment
from fedsw.experiment.trust import accounting_at_server
from fedsw.privacy import release as door
from fedsw.privacy.accounting import AlreadySpent, BudgetExhausted, Charge, Ledger
from fedsw.privacy.mechanisms import MECHANISMS
from fedsw.privacy.release import Bounded, Paid, Part, pay, release, release_paid, release_paid_together
from fedsw.privacy.sensitivity import Sensitivity
from tests.doors import Unaccounted
from tests.federation.sketch_runs import LOCAL, SKETCH
from tests.federation.test_local_slices import RELEASE, SLICES
from tests.federations import Federation
from tests.noises import replace_noise, require_gaussian

PACKAGE = Path(fedsw.__file__).parent
THE_DOOR = PACKAGE / "privacy" / "release.py"
NOISE = {"noised", "laplace_noised", "released_on_grid", "MECHANISMS"}
VALUE = torch.arange(6, dtype=torch.float64)


class Fixed:
    """A guarantee with a multiplier and a seeded stream."""

    accountant, mechanism, relation, nominal = "pld", "gaussian", "replace-one", True

    def __init__(self, multiplier: float, **promised) -> None:
        self.multiplier = multiplier
        vars(self).update(promised)

    def noise_stream(self, round_: int, attempt: int) -> Stream:
        return Stream.seeded(3, round_, attempt)


def bounded(value=VALUE, delta: float = 2.0, round_: int = 1, attempt: int = 0, rate: float = 0.1) -> Bounded:
    charge = Charge("A", rate, delta)
    return Bounded(value, Sensitivity(delta, "stated"), round=round_, attempt=attempt, charges=[charge])


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite", groups=("A",), delta=1e-5, epsilon=1.0, nominal=True) as found:
        yield found


def test_a_release_is_charged_at_the_sensitivity_and_noised_in_proportion_to_it(ledger):
    released = release(bounded(), Fixed(20.0), ledger)
    (entry,) = ledger.entries()
    assert (entry.sensitivity, entry.sigma, entry.round, entry.attempt) == (2.0, 40.0, 1, 0)
    assert released.sigma == 40.0 and released.spent == ledger.epsilon() > 0
    torch.testing.assert_close(released.value, door.noised(VALUE, 40.0, Stream.seeded(3, 1, 0)), rtol=0, atol=0)


def test_a_release_that_is_too_much_leaves_nothing_and_writes_nothing(ledger, monkeypatch):
    replace_noise(monkeypatch, lambda *a: pytest.fail("noise was drawn"))
    with pytest.raises(BudgetExhausted):
        release(bounded(rate=1.0), Fixed(0.1), ledger)
    assert ledger.entries() == []


def test_without_noise_only_a_ledger_without_a_limit_takes_it(ledger, tmp_path):
    with pytest.raises(BudgetExhausted):
        release(bounded(), Fixed(0.0), ledger)
    with Ledger.create(tmp_path / "free.sqlite", groups=("A",), delta=1e-5, epsilon=math.inf, nominal=True) as free:
        released = release(bounded(), Fixed(0.0), free)
    assert torch.equal(released.value, VALUE) and (released.sigma, released.spent) == (0.0, math.inf)


def test_a_round_and_attempt_are_released_once(ledger):
    release(bounded(), Fixed(20.0), ledger)
    with pytest.raises(AlreadySpent):
        release(bounded(), Fixed(20.0), ledger)
    release(bounded(attempt=1), Fixed(20.0), ledger)


def test_a_crash_while_noise_is_drawn_has_been_charged(ledger, monkeypatch):
    def crash(*a):
        raise KeyboardInterrupt

    replace_noise(monkeypatch, crash)
    with pytest.raises(KeyboardInterrupt):
        release(bounded(), Fixed(20.0), ledger)
    assert ledger.replay() > 0


def test_a_value_without_charges_or_with_larger_ones_is_refused(ledger):
    with pytest.raises(ValueError, match="states no charges"):
        release(Bounded(VALUE, Sensitivity(1.0, "stated")), Fixed(1.0), ledger)
    with pytest.raises(ValueError, match="group A moves the value by up to 3, above the stated sensitivity 2"):
        Bounded(VALUE, Sensitivity(2.0, "stated"), charges=[Charge("A", 0.1, 3.0)])
    assert ledger.entries() == []


def test_a_bounded_value_is_no_tensor_and_is_not_stored_or_shown():
    held = bounded(torch.tensor([123456.0], dtype=torch.float64))
    for attempt in (
        lambda: torch.as_tensor(held),
        lambda: held + 1,
        lambda: float(held),
        lambda: held[0],
        lambda: list(held),
        lambda: np.asarray(held, dtype=np.float64),
        lambda: pickle.dumps(held),
        lambda: copy.deepcopy(held),
        lambda: held.value,
    ):
        with pytest.raises((TypeError, AttributeError, RuntimeError)):
            attempt()
    assert "123456" not in f"{held!r} {held} {held.shape} {held.sensitivity}"
    with pytest.raises(TypeError, match="float64"):
        bounded(VALUE.float())


def test_a_part_leaves_once():
    part = Part("table", 1.0, 2.0)
    paid = pay(Unaccounted(), 1, 0, [Charge("A", 1.0, 1.0)], 2.0, [part])
    value = Bounded(VALUE, Sensitivity(1.0, "stated"))
    release_paid(value, paid, "table", Stream.seeded(1))
    for name in ("table", "other"):
        with pytest.raises(ValueError, match=f"nothing is paid for '{name}'.*left already"):
            release_paid(value, paid, name, Stream.seeded(1))


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=5), st.floats(1.01, 3))
def test_parts_never_cost_more_than_is_charged(parts, factor):
    named = [Part(str(i), delta, scale) for i, (delta, scale) in enumerate(parts)]
    joint = math.sqrt(sum((delta / scale) ** 2 for delta, scale in parts))
    pay(Unaccounted(), 1, 0, [Charge("A", 1.0, joint)], 1.0, named)
    with pytest.raises(ValueError, match="nothing was charged"):
        pay(Unaccounted(), 1, 0, [Charge("A", 1.0, joint / factor)], 1.0, named)


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=2, max_size=5))
def test_parts_with_laplace_noise_cost_the_sum_of_what_each_does(parts):
    """Pure epsilons add up; the root of the sum of squares is what normal noise costs."""
    named = [Part(str(i), delta, scale, "laplace") for i, (delta, scale) in enumerate(parts)]
    joint = sum(delta / scale for delta, scale in parts)
    pay(Unaccounted("laplace"), 1, 0, [Charge("A", 1.0, joint)], 1.0, named)
    with pytest.raises(ValueError, match="nothing was charged"):
        pay(Unaccounted("laplace"), 1, 0, [Charge("A", 1.0, joint * (1 - 1e-6))], 1.0, named)


def test_a_ledger_takes_no_noise_that_its_accountant_does_not_mean(tmp_path, ledger):
    """mu = 1 is epsilon = 1 of Laplace noise, and 4.38 at delta = 1e-5 of normal noise."""
    pure = {"groups": ("A",), "delta": 1e-5, "epsilon": 1.0, "accountant": "laplace"}
    with Ledger.create(tmp_path / "pure.sqlite", **pure) as of_laplace:
        with pytest.raises(ValueError, match="accountant 'pld' and the ledger 'laplace'.*Nothing was charged"):
            release(bounded(rate=1.0), Fixed(1.0), of_laplace)
        bill = door.Bill(of_laplace, 1, 0, [Charge("A", 1.0, 1.0)], 1.0, [Part("value", 1.0, 1.0)])
        assert "nothing was charged" in str(door.pay_together([bill])[0]) and of_laplace.entries() == []
        pay(of_laplace, 1, 0, [Charge("A", 1.0, 1.0)], 1.0, [Part("value", 1.0, 1.0, "laplace")])
    with pytest.raises(ValueError, match="'pld' is of gaussian.* noise.*'laplace'.*nothing was charged"):
        pay(ledger, 1, 0, [Charge("A", 1.0, 0.1)], 1.0, [Part("value", 0.1, 1.0, "laplace")])
    assert ledger.entries() == []


def test_a_value_that_moves_further_than_was_paid_for_stays():
    paid = pay(Unaccounted(), 1, 0, [Charge("A", 1.0, 1.0)], 2.0, [Part("table", 1.0, 2.0)])
    with pytest.raises(ValueError, match="moves by up to 1.1, and was paid for as 1"):
        release_paid(Bounded(VALUE, Sensitivity(1.1, "stated")), paid, "table", Stream.seeded(1))


def test_a_payment_that_is_kept_between_messages_comes_back_as_it_was():
    parts = [Part("a", 1.0, 2.0, "laplace"), Part("b", 2.0, 1.0, "laplace", "replace-one, label and group included")]
    paid = pay(Unaccounted("laplace"), 3, 2, [Charge("A", 1.0, 5.0)], 2.0, parts)
    assert Paid.from_kept(paid.kept()) == paid


def test_a_part_without_noise_says_so():
    wrong = ((0.0, "gaussian", "noise of scale 0"), (1.0, "none", "has no noise"), (1.0, "x", "there are 'gaussian'"))
    for scale, mechanism, said in wrong:
        with pytest.raises(ValueError, match=said):
            Part("a", 1.0, scale, mechanism)


def _paid(count: int, scales: list[float]) -> list[Paid]:
    return [
        pay(Unaccounted(), 1, 0, [Charge("A", 1.0, 1.0)], scale, [Part("table", 1.0, scale)])
        for scale in scales[:count]
    ]


def test_values_released_together_have_noise_of_their_own_scale_and_share_none():
    scales = [2.0, 5.0, 2.0, 5.0]
    values = [Bounded(torch.zeros(500, 4, dtype=torch.float64), Sensitivity(1.0, "stated")) for _ in scales]
    found = release_paid_together(values, _paid(4, scales), "table", Stream.seeded(1))
    assert [each.sigma for each in found] == scales and [tuple(each.value.shape) for each in found] == [(500, 4)] * 4
    require_gaussian(torch.stack([(each.value / each.sigma).reshape(-1) for each in found]), 1.0)


def test_what_is_not_paid_for_keeps_nothing_else_that_is_released_with_it():
    values = [Bounded(VALUE, Sensitivity(delta, "stated")) for delta in (1.0, 1.1, 1.0)]
    paid = _paid(3, [2.0] * 3)
    first, refused, last = release_paid_together(values, paid, "table", Stream.seeded(1))
    assert isinstance(refused, ValueError) and "moves by up to 1.1, and was paid for as 1" in str(refused)
    assert first.sigma == last.sigma == 2.0 and "table" in paid[1].parts and not paid[0].parts
    (again, *_) = release_paid_together(values[:1], paid[:1], "table", Stream.seeded(1))
    assert isinstance(again, ValueError) and "left already" in str(again)


def naming(names: Collection[str]) -> Iterator[tuple[Path, str]]:
    """Files of the package, and their text, in which one of the names stands at all."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if any(name in text for name in names):
            yield path, text


def test_no_other_file_of_the_package_adds_noise_or_spends():
    found = {name: set() for name in (*NOISE, "spend", "spend_together")}
    for path, text in naming(found):
        for node in ast.walk(ast.parse(text)):
            looked_up = isinstance(node, ast.Subscript)
            if isinstance(node, ast.Call) or looked_up:
                function = node.value if looked_up else node.func
                called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                if called in found:
                    found[called].add(path)
    laws = {PACKAGE / "privacy" / "mechanisms.py"}  # which may be made of one another
    door_only = dict.fromkeys(("noised", "spend", "spend_together"), {THE_DOOR})
    none = dict.fromkeys(("laplace_noised", "MECHANISMS", "released_on_grid"), set())
    assert {name: places - laws for name, places in found.items()} == {**door_only, **none}


def test_no_other_file_of_the_package_imports_what_adds_noise():
    for path, text in naming(NOISE):
        names = {
            alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        if path != THE_DOOR and path.parent != PACKAGE / "privacy":
            assert names.isdisjoint(NOISE), path


FAIR = {
    "name": "door",
    "seed": 1,
    "data": {"records": 300, "test_records": 50},
    "training": {"rounds": 2},
    "federation": {"clients": 2},
}
RUNS = {
    "central": (FAIR, ()),
    "none": (FAIR, ("privacy.trust=none",)),
    "local-gradient": (FAIR, ("privacy.trust=local-gradient", "privacy.epsilon=20")),
    "local-slices": (SLICES, ("training.rounds=2",)),
    "local-release": (RELEASE, ("training.rounds=2",)),
    "distributed": (FAIR, ("privacy.trust=distributed", "privacy.epsilon=20")),
    "distributed, a sketch": (SKETCH, ("privacy.trust=distributed", "training.rounds=2")),
    "sketch": (SKETCH, ("training.rounds=2",)),
    "sketch-local": (SKETCH, ("training.rounds=2", LOCAL)),
}


@pytest.mark.parametrize("sites", [None, 1])
@pytest.mark.parametrize("trust", RUNS)
def test_whatever_a_run_charges_or_noises_goes_through_the_door(tmp_path, monkeypatch, trust, sites):
    """The frame that calls a noise or a ledger is the door's, for every call of a whole run."""
    callers: dict[str, set[str]] = {}

    def watching(name, genuine):
        def watched(*given, **named):
            callers.setdefault(name, set()).add(sys._getframe(1).f_code.co_filename)
            return genuine(*given, **named)

        return watched

    def watch(owner, name):
        monkeypatch.setattr(owner, name, watching(name, getattr(owner, name)))

    watch(Ledger, "spend")
    watch(door, "spend_together")
    watch(door, "noised")  # of shares
    for name, mechanism in MECHANISMS.items():
        replace_noise(monkeypatch, watching(name, mechanism.noised), name)
    raw, overrides = RUNS[trust]
    at_sites = () if sites is None else (f"federation.sites={sites}",)
    chosen = parse_experiment(raw, (*overrides, *at_sites))
    Federation(tmp_path).run(chosen)
    together = trust not in accounting_at_server()
    assert callers["spend_together" if together else "spend"] == {str(THE_DOOR)}
    assert ("spend" in callers) != together
    assert ("noised" if chosen.privacy.model.masks else "gaussian") in callers or trust == "none"
    assert callers.get("gaussian", {str(THE_DOOR)}) == {str(THE_DOOR)}
