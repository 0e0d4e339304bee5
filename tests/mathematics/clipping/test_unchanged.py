"""Whatever a pass on private records changes in a module is as it was before: nothing of a record outlasts it."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from fedsw.mathematics.clipping import Term, UnsupportedModule, clipped_sum, kept, record, unchanged
from fedsw.mathematics.clipping import tape as recording

RARE = 137.5
"""A value that no made-up record has: only private ones make the modules here keep something."""
SEEN: list[float] = []


class Keeper(nn.Module):
    """A layer that trains, and what it keeps of records that hold the rare value."""

    def __init__(self, keep, **held):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()
        self.keep = keep
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x):
        if bool((x == RARE).any()):
            with torch.no_grad():
                self.keep(self, x)
        return self.layer(x / 100)


class Slotted:
    __slots__ = ("largest",)

    def __init__(self):
        self.largest = 0.0

    def see(self, layer, inputs, output):
        if bool((inputs[0] == RARE / 100).any()):
            self.largest = float(inputs[0].max())


class Plain:
    """An object whose class a pass changes."""


class Other(Plain):
    pass


class OnClass(Keeper):
    seen: list[float] = []
    count = 0


class Doubled(nn.Module):
    """A parametrization that counts how often a weight is asked for with the rare value about."""

    def __init__(self):
        super().__init__()
        self.register_buffer("asked", torch.zeros(1).double())

    def forward(self, weight):
        self.asked += 1.0
        return 2 * weight


def frozen(*shape):
    return nn.Parameter(torch.zeros(*shape).double(), requires_grad=False)


def hooked(store):
    module = Keeper(lambda module, x: None)

    def see(layer, inputs, output):
        if bool((inputs[0] == RARE / 100).any()):
            store.append(float(inputs[0].max()))

    module.layer.register_forward_hook(see)
    return module


def heard(listener):
    module = Keeper(lambda module, x: None, listener=listener)
    module.layer.register_forward_hook(listener.see)
    return module


def parametrized():
    module = Keeper(lambda module, x: module.still(x.double()), still=nn.Linear(3, 2).double().requires_grad_(False))
    parametrize.register_parametrization(module.still, "weight", Doubled())
    return module


def add(value, x):
    value += x.max()


def global_list(module, x):
    SEEN.append(float(x.max()))


HOOKED = []
KEEPERS = {
    "a buffer": lambda: Keeper(lambda m, x: add(m.largest, x), largest=torch.zeros(1).double()),
    "a buffer that is bound anew": lambda: Keeper(lambda m, x: setattr(m, "largest", x.max()), largest=torch.zeros(1)),
    "a buffer that grows": lambda: Keeper(lambda m, x: m.rows.set_(x.clone()), rows=torch.zeros(1).double()),
    "a frozen parameter": lambda: Keeper(lambda m, x: add(m.count.data, x), count=frozen(1)),
    "a frozen embedding that is cut": lambda: Keeper(
        lambda m, x: F.embedding(torch.arange(3), m.table, max_norm=0.5), table=nn.Parameter(torch.ones(5, 4), False)
    ),
    "a trained weight": lambda: Keeper(lambda m, x: add(m.layer.weight.data[0, :1], x)),
    "a weight's data that is another": lambda: Keeper(lambda m, x: setattr(m.layer.bias, "data", x[0, :2].clone())),
    "a gradient": lambda: Keeper(lambda m, x: setattr(m.layer.bias, "grad", x[0, :2].clone())),
    "a number": lambda: Keeper(lambda m, x: setattr(m, "top", float(x.max())), top=0.0),
    "an attribute that was not there": lambda: Keeper(lambda m, x: setattr(m, "late", x)),
    "an attribute that goes": lambda: Keeper(lambda m, x: delattr(m, "early"), early=1),
    "a list": lambda: Keeper(lambda m, x: m.seen.append(float(x.max())), seen=[]),
    "a list in a dict": lambda: Keeper(lambda m, x: m.seen["top"].append(float(x.max())), seen={"top": []}),
    "a set": lambda: Keeper(lambda m, x: m.seen.update(x.flatten().tolist()), seen=set()),
    "an array": lambda: Keeper(lambda m, x: m.seen.fill(float(x.max())), seen=np.zeros(3)),
    "an object's slot": lambda: Keeper(lambda m, x: setattr(m.seen, "largest", float(x.max())), seen=Slotted()),
    "an iterator": lambda: Keeper(lambda m, x: next(m.seen), seen=itertools.count()),
    "a generator of random numbers": lambda: Keeper(lambda m, x: m.seen.random(), seen=random.Random(0)),
    "an attribute of the class": lambda: OnClass(lambda m, x: setattr(type(m), "count", float(x.max()))),
    "a list of the class": lambda: OnClass(lambda m, x: m.seen.append(float(x.max()))),
    "an attribute of a function": lambda: Keeper(lambda m, x: vars(m.see).update(top=float(x.max())), see=lambda: 0),
    "a class": lambda: Keeper(lambda m, x: setattr(m.seen, "__class__", Other), seen=Plain()),
    "a weight's attribute": lambda: Keeper(lambda m, x: setattr(m.layer.weight, "seen", float(x.max()))),
    "a hook that is made in the pass": lambda: Keeper(lambda m, x: m.layer.register_forward_hook(lambda *a: None)),
    "what a hook closes over": lambda: hooked(HOOKED),
    "what a hook is bound to": lambda: heard(Slotted()),
    "a global list": lambda: Keeper(global_list),
    "a parametrization": parametrized,
}


def picture(module):
    """All that is known of a module and of what it keeps, as text."""
    tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    kept_ = {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "keep"}
    seen = kept_.get("seen")
    return (
        {name: (value.tolist(), value.grad) for name, value in tensors.items()},
        sorted(kept_),
        [repr(copy.deepcopy(value)) for value in kept_.values() if isinstance(value, float | list | dict | set)],
        seen.tolist() if isinstance(seen, np.ndarray) else None,
        seen.getstate() if isinstance(seen, random.Random) else repr(seen) if isinstance(seen, itertools.count) else "",
        [held.largest for held in kept_.values() if isinstance(held, Slotted)],
        (OnClass.count, list(OnClass.seen), list(SEEN), list(HOOKED)),
        (len(module.layer._forward_hooks), type(seen), vars(module.layer.weight).copy()),
        vars(module.see).copy() if hasattr(module, "see") else None,
    )


def records():
    x = torch.rand(6, 3, generator=torch.Generator().manual_seed(0)).double()
    x[2, 1] = RARE
    return x


@pytest.mark.parametrize("name", KEEPERS)
def test_a_pass_on_private_records_leaves_a_module_as_it_was(name):
    module, x = KEEPERS[name](), records()
    before = picture(module)
    tape = record(module, x)
    total = clipped_sum(tape, [Term(tape.raw, torch.ones_like(tape.raw), 1.0)])
    assert bool(total.abs().sum() > 0)
    assert picture(module) == before


@pytest.mark.parametrize("name", KEEPERS)
def test_without_putting_back_it_would_keep_something(name):
    module, x = KEEPERS[name](), records()
    before = picture(module)
    with unchanged(module):
        module(x)
        assert picture(module) != before
    assert picture(module) == before


def test_a_state_may_be_put_back_after_every_piece():
    module = Keeper(lambda m, x: next(m.seen), seen=itertools.count())
    with kept(module) as state:
        for _ in range(3):
            module(records())
            assert repr(module.seen) == "count(1)"
            state.put_back()
    assert repr(module.seen) == "count(0)"


def test_no_block_of_records_meets_what_another_left(monkeypatch):
    class Scaled(Keeper):
        def forward(self, x):
            return super().forward(x) / self.largest

    x, outputs = records(), []
    x[[0, 2]] = x[[2, 0]]
    for rows in (1, 6):
        monkeypatch.setattr(recording, "_block_rows", lambda parameters, tensors, rows=rows: rows)
        torch.manual_seed(0)
        module = Scaled(lambda m, x: add(m.largest, x) if len(x) == 1 else None, largest=torch.ones(1).double())
        outputs.append(record(module, x).raw.detach()[1:])
    assert torch.equal(*outputs)


def test_outputs_in_memory_that_is_put_back_are_those_of_the_pass():
    class Filled(Keeper):
        def forward(self, x):
            with torch.no_grad():
                self.memory[0][: len(x)].copy_(x)
            return super().forward(x), self.memory[0][: len(x)]

    tape = record(Filled(lambda m, x: None, memory=[torch.zeros(6, 3).double()]), records())
    assert torch.equal(tape.raw[1].detach(), records())


def test_what_a_backward_pass_runs_again_is_put_back_too():
    class Again(Keeper):
        def forward(self, x):
            inner = super().forward
            return torch.utils.checkpoint.checkpoint(lambda z: torch.tanh(inner(z)), x, use_reentrant=False)

    module = Again(lambda m, x: add(m.count.data, x), count=frozen(1))
    tape = record(module, records())
    clipped_sum(tape, [Term(tape.raw, torch.ones_like(tape.raw), 1.0)])
    assert float(module.count) == 0


def test_an_attribute_that_no_copy_can_be_made_of_is_refused_by_name_before_a_pass():
    module = Keeper(lambda m, x: None, lock=threading.Lock())
    with (
        pytest.raises(UnsupportedModule, match=r"Keeper\.lock is a lock.*Keep it elsewhere"),
        unchanged(module),
    ):
        raise AssertionError("the pass ran")


@dataclass
class Setting:
    """A task's settings as a dataclass, whose class holds what cannot be copied."""

    width: int = 3
    names: MappingProxyType = field(default_factory=lambda: MappingProxyType({"a": 1}))


@pytest.mark.parametrize(
    "held", [Setting(), MappingProxyType({"a": [1]}), np.dtype("f8"), range(3), (x for x in "a").__class__]
)
def test_what_keeps_nothing_need_not_be_copied(held):
    module = Keeper(lambda m, x: add(m.largest, x), largest=torch.zeros(1).double(), held=held)
    with unchanged(module):
        module(records())
    assert float(module.largest) == 0 and module.held is held


def test_a_layer_that_knows_its_parent_is_put_back():
    module = Keeper(lambda m, x: add(m.largest, x), largest=torch.zeros(1).double())
    vars(module.layer)["parent"] = module
    with unchanged(module):
        module(records())
    assert float(module.largest) == 0 and module.layer.parent is module
