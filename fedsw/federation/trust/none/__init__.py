"""Trust model `none`: the reference without privacy; everybody is trusted, and nothing is noised."""

from __future__ import annotations

from fedsw.federation.trust.central import Central


class Nobody(Central):
    """As `central`, without noise: every other trust model is measured against it."""

    name = "none"
    noised = False
    trusted_with = "everybody"
    adds_noise = "none"
    protects = "nobody"


TRUST_MODEL = Nobody()
