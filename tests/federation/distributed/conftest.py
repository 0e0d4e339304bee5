"""Fixtures of masked sums' tests."""

import pytest

from tests.brief import brief  # noqa: F401
from tests.federation.distributed.sites import Sites


@pytest.fixture
def sites(tmp_path):
    return Sites(tmp_path)


@pytest.fixture
def exact(monkeypatch):
    """What left, in order: the exact value, the site's own whole numbers before the mask, and sigma of H clients."""
    from fedsw.federation.trust.distributed import site

    found, real = [], site.release_share

    def spy(bounded, paid, name, share, mask, stream):
        sigma = paid[0].parts[name].scale
        numbers = real(bounded, paid, name, share, mask, stream)
        found.append((bounded._take().reshape(-1).clone(), numbers - mask, sigma))
        return numbers

    monkeypatch.setattr(site, "release_share", spy)
    return found
