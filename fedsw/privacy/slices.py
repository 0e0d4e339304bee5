"""Random slices: noisy one-dimensional projections of a client's records, which protect them outside the client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport.flow import Slices, UnprotectedSlices
from fedsw.mathematics.transport.given import positive, unit_columns
from fedsw.mathematics.transport.sliced import Scheme, direction_shape, project
from fedsw.mathematics.transport.sliced import directions as directions_from
from fedsw.privacy.release import Bounded, Released
from fedsw.privacy.sensitivity import Sensitivity

# ||(d/k) Theta Theta^T - I||_F of directions that a client did not draw itself; float64 blocks stay below 1e-12.
ISOTROPY = 1e-9
_INSIDE = 1 - 2 * ISOTROPY  # of the radius: what directions within the tolerance, and rounding, may add to a move


class DirectionStream:
    """The only source of the directions of a release: numbers of this purpose, from a stream's secret key.

    Its key is derived from the source's key, a tag, and a nonce that is read off the source. So it shares no number
    with the data, sampling or noise of the same seed, and two of them never repeat each other unless they are made
    from two copies of a seeded stream at the same place (a nominal run).
    """

    def __init__(self, source: Stream) -> None:
        nonce = (int(word) for word in source.words(2))
        self._stream = source.child("directions of random slices", *nonce)

    def draw(self, p: int, k: int, scheme: Scheme = "orthogonal") -> Tensor:
        """The next k directions of R^p, unit columns of a (p, k) float64 tensor; see `sliced.directions`."""
        shape = direction_shape(p, k, scheme)
        normals = torch.from_numpy(self._stream.normals(shape[0] * shape[1])).reshape(shape)
        return directions_from(p, k, normals=normals, scheme=scheme)


@dataclass(frozen=True)
class BoundedSlices:
    """Projections (n, k) before their noise, on public directions (p, k); made by `fresh_slices` or `slices_on`.

    ``bounded`` is X Theta; its sensitivity is the diameter of the ball, before slicing.
    """

    bounded: Bounded
    directions: Tensor

    def released(self, released: Released) -> Slices:
        """The released slices."""
        values = released.value.to(self.directions)
        return Slices(self.directions, values, released.sigma)


def fresh_slices(
    features: Tensor, *, radius: float, k: int, scheme: Scheme, directions_stream: DirectionStream
) -> BoundedSlices:
    """X Theta, to be released with noise sigma, on directions that are drawn here, after the features are fixed.

    Rows are projected onto the ball of `radius` about the origin; one that is not finite becomes the origin. Nothing
    branches or raises on their values, and nothing is differentiated through.

    Guarantee: for data sets that differ in one replaced record the pair (Theta, X Theta + sigma Z) has the profile
    E_B[delta_G(s sqrt(B) / sigma)], with s = 2 radius the diameter and B the squared length of a unit vector's
    projections: a sum of k Beta(1/2, (p-1)/2) for "iid"; for "orthogonal", k = q p + r, q + Beta(r/2, (p-r)/2).
    It protects each record from every observer outside the client; the number of records is public. The next release of
    the same records must draw its directions anew: pass the same stream, which never repeats itself.

    Features are (n, p), n >= 1; the radius, in their units, is public and fixed in advance. The stream of the k
    directions is secret until the release. TypeError if it is not a DirectionStream; ValueError if the radius is not
    finite and above 0, k is below 1, or there is no record.

    Source: RR (mechanism); docs/guarantees/accounting.md (profile).
    """
    if not isinstance(directions_stream, DirectionStream):
        raise TypeError(
            f"directions_stream is a {type(directions_stream).__name__}; wrap its source, DirectionStream(stream), so "
            "that directions share no number with data or noise"
        )
    rows = _in_the_ball(features, radius)
    return _bounded(rows, directions_stream.draw(rows.shape[1], k, scheme).to(rows.device), radius)


def slices_on(features: Tensor, directions: Tensor, *, radius: float) -> BoundedSlices:
    """X Theta, to be released with noise sigma, on directions drawn elsewhere, if they are whole orthogonal blocks.

    With (p/k) Theta Theta^T = I a replaced record moves its projections by exactly sqrt(k/p) times its own move, at
    most 2 radius, *whatever* Theta is, even one that was built from the data. So the sender of Theta is not trusted:
    the equation is checked, here, at the client. Clients that share directions can be pooled.

    Guarantee: as a Gaussian mechanism with mu = 2 radius sqrt(k/p) / sigma under the replacement of one record; rows
    stay so far inside the ball that tolerance and rounding are covered. Releases compose, on any directions.

    Directions are (p, k), k a multiple of p: whole blocks of p orthonormal directions, or any unit columns of which the
    sum of the outer products is (k/p) I; else ValueError. For the rest see `fresh_slices`.

    Source: docs/guarantees/slices.md.
    """
    rows = _in_the_ball(features, radius)
    theta, p = directions.detach().to(rows), rows.shape[1]
    if theta.ndim != 2 or theta.shape[0] != p or theta.shape[1] == 0 or theta.shape[1] % p:
        raise ValueError(
            f"directions have shape {tuple(theta.shape)} for features of dimension {p}: expected ({p}, k) with k a "
            f"multiple of {p}, whole orthogonal blocks. Choose another k, or let the client draw (fresh_slices)"
        )
    unit_columns(theta, p, tolerance=ISOTROPY)
    # The Frobenius norm bounds the spectral one, by which a move is longer than in whole orthogonal blocks.
    identity = torch.eye(p, dtype=theta.dtype, device=theta.device)
    gap = float(torch.linalg.matrix_norm(theta @ theta.T * (p / theta.shape[1]) - identity))
    if not gap <= ISOTROPY:
        raise ValueError(
            f"directions are not whole orthogonal blocks: (p/k) Theta Theta^T is {gap:.3g} from the identity, at most "
            f"{ISOTROPY:g} is allowed. Nothing was released; draw them with "
            "fedsw.mathematics.transport.sliced, or let the client "
            "draw its own (fresh_slices)"
        )
    return _bounded(rows, theta, radius)


def unprotected_slices(features: Tensor, directions: Tensor) -> UnprotectedSlices:
    """Projections WITHOUT NOISE OR CLIPPING, epsilon = infinity: the non-private reference, never for private records.

    Features are (n, p), directions (p, k) unit columns.
    """
    values = features.detach().to(torch.float64)
    theta = directions.detach().to(values)
    return UnprotectedSlices(theta, values @ theta, 0.0)


def _in_the_ball(features: Tensor, radius: float) -> Tensor:
    """The features in the ball: (n, p) float64, detached and copied."""
    radius = positive(radius, "radius")
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"features have shape {tuple(features.shape)}; expected (n, p) with at least one record")
    return project(features.detach().to(torch.float64), radius * _INSIDE)


def _bounded(rows: Tensor, theta: Tensor, radius: float) -> BoundedSlices:
    return BoundedSlices(Bounded((rows @ theta).cpu(), Sensitivity(2 * radius, "diameter")), theta)
