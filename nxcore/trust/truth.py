"""Agreement of a kernel with the float64 reference: two gates, and samples that detect wrong results.

With u the unit roundoff of the output's dtype, u32 = 2^-24 (accumulation in float32 or wider is part of
every contract), S the operator on absolute values and n the terms per output, both from the spec:

(a) elementwise: |y - y64| <= 4 (u |y64| + u32 sqrt(n) S)
(b) normwise:    rmse(y) <= 3 rmse(torch) + u/8 rms(y64) + u32 rms(S)

Where the call allows a precision class coarser than ieee32, S (in (b), rms(S)) times the share of a term that
its factors may lose is added to both.

(a) follows the probabilistic error bound of Higham and Mary 2019, doi:10.1137/18M1226312. (b) is
needed because (a) misses a low-precision product over long sums of zero mean. With few outputs, torch's own
error is random and no measure: for up to 64 of them (b) also allows one rounding of the output, u rms(y64).
Many outputs may share few roundings, for example of one weight: u32 rms(S) allows for these.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nxcore.errors import VerificationError
from nxcore.spec.precision import SHARE
from nxcore.spec.problem import leaves
from nxcore.spec.spec import OpSpec
from nxcore.trust.form import form, misformed, misplaced, spans
from nxcore.trust.memory import bits, same
from nxcore.trust.state import UNCHANGED, State, disturbance

ACCUMULATOR = 2.0**-24
FEW = 64
Dtype = torch.dtype
ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """The comparison of a result with the truth: whether both gates passed, else the broken rule.

    The error is the relative one in the 2-norm, over the finite outputs. It is the absolute one where zeros
    would be within the allowed error: their relative error is 1, and they are right.
    """

    ok: bool
    error: float
    reason: str = ""


class _Tame(NamedTuple):
    """Outputs of one dtype and device, side by side: the bounds of gate (a), and of gate (b) with the norm.

    The bound is -1 where an output may have special values.
    """

    places: list[int]
    sizes: list[int]
    dtype: torch.dtype
    exact: Tensor
    bound: Tensor
    limits: list[tuple[float, float]]


@dataclass(frozen=True)
class Truth:
    """The right result of one call, and the scales for the comparison of others.

    ``exact`` is the reference in float64 on the rounded inputs, flattened, without None; for an operator that
    never rounds, or not on these numbers (``bitwise``), in the call's own dtype. ``torch`` is the reference
    in that dtype: it defines the layout, and the error to compare with. ``scale`` is the operator on absolute
    values, in float64, ``share`` the error that each term may have by its factors' lost bits, as the call's
    precision class allows.
    """

    exact: tuple[Tensor, ...]
    torch: tuple[Tensor, ...]
    scale: tuple[Tensor, ...]
    terms: int
    bitwise: bool
    share: float = 0.0

    @classmethod
    def of(cls, spec: OpSpec, args: tuple[Any, ...], *, exactly: bool = False) -> Truth:
        """Compute the truth of a call of ``spec`` with ``args``; an ``out`` among them isn't written.

        With ``exactly``, nothing rounds in any order of the sums, so a result must be equal bit for bit.
        """
        args = without_out(spec, args)
        wide = tuple(widened(a) for a in args)
        with torch.no_grad():
            native = tuple(leaves(spec.reference(*args)))
            # If values are only moved, nothing rounds, and the call's own dtype is exact.
            exact = native if spec.exact else tuple(leaves(spec.reference(*wide)))
            return cls(
                exact=exact,
                torch=tuple(e.to(t.dtype) for e, t in zip(exact, native, strict=True)) if exactly else native,
                scale=native if spec.exact else tuple(leaves(spec.magnitude(*wide))),
                terms=max(spec.terms(*args), 1),
                bitwise=spec.exact or exactly,
                share=share_of(spec, args),
            )

    def judge(self, result: Any, *, laid_out: bool = True) -> Agreement:
        """Compare ``result`` with the truth: structure, dtype, shape, layout, special values, both gates.

        The layout must be torch's, unless ``laid_out`` is False: an ``out`` has the caller's layout.
        """
        got = tuple(leaves(result))
        if len(got) != len(self.exact):
            return Agreement(False, float("inf"), f"expected {len(self.exact)} outputs, got {len(got)}")
        worst = 0.0
        for y, like in zip(got, self.torch, strict=True):
            for what, wanted, came in (
                ("dtype", like.dtype, y.dtype),
                ("shape", tuple(like.shape), tuple(y.shape)),
                ("device", like.device, y.device),
                ("strides", _strides(like), _strides(y)),
            ):
                if wanted != came and (laid_out or what != "strides"):
                    return Agreement(False, float("inf"), f"{what} must be torch's {wanted}, got {came}")
        for i, (y, like, passed) in enumerate(zip(got, self.torch, self._passed(got), strict=True)):
            found = passed or self._gates(y, self.exact[i], like, self.scale[i])
            worst = max(worst, found.error)
            if not found.ok:
                return Agreement(False, worst, found.reason)
        return Agreement(True, worst)

    @functools.cached_property
    def _tame(self) -> list[_Tame]:
        """The outputs without special values, side by side."""
        groups: dict[Any, list[int]] = {}
        for i, like in enumerate(self.torch):
            if not self.bitwise and like.dtype.is_floating_point and like.numel():
                groups.setdefault((like.dtype, like.device), []).append(i)
        made, wanted = list[_Tame](), list[Tensor]()
        for (dtype, _), places in groups.items():
            sizes = [self.torch[i].numel() for i in places]
            y64, scale = _beside(self.exact, places), _beside(self._scales, places)
            apart = (_beside(self.torch, places).double() - y64).abs()
            made.append(_Tame(places, sizes, dtype, y64, self._bound(y64, scale, dtype), []))
            for values, order in ((y64, 2), (apart, 2), (scale, 2), (y64, math.inf)):
                wanted += _norms(values, sizes, order)
        rest = iter(numbers(wanted))
        for group in made:
            four = ([next(rest) for _ in group.sizes] for _ in range(4))
            for size, *norms, largest in zip(group.sizes, *four, strict=True):
                norm, apart, reach = (value / size**0.5 for value in norms)
                fits = largest < torch.finfo(group.dtype).max / 2 and math.isfinite(norm)  # false for NaN too
                allowed = self.allowed(norm, apart, reach, group.dtype, size) if fits else -1.0
                group.limits.append((allowed, norm))
        return made

    @property
    def _scales(self) -> list[Tensor]:
        return [s.broadcast_to(like.shape) for s, like in zip(self.scale, self.torch, strict=True)]

    def _passed(self, result: Sequence[Tensor]) -> list[Agreement | None]:
        """Return the agreement of outputs by a quick test; None where it isn't enough.

        The host waits for the device once, whatever their number.
        """
        wanted, found = list[Tensor](), list[Agreement | None]([None] * len(result))
        for group in self._tame:
            error = (_beside(result, group.places).double() - group.exact).abs()
            outside = (error <= group.bound).logical_not().double()
            wanted += [*_norms(error, group.sizes, 2), *_norms(outside, group.sizes, 2)]
        rest = iter(numbers(wanted))
        for group in self._tame:
            errors, outsides = ([next(rest) for _ in group.sizes] for _ in range(2))
            rows = zip(group.places, group.sizes, group.limits, errors, outsides, strict=True)
            for i, size, (allowed, norm), off, out in rows:
                rms = off / size**0.5
                if rms <= allowed and not out:
                    found[i] = Agreement(True, _relative(rms, norm, allowed))
        return found

    def _bound(self, y64: Tensor, scale: Tensor, dtype: Dtype) -> Tensor:
        """Return the bound of gate (a) for finite outputs."""
        scale = scale.nan_to_num(posinf=0.0)
        bound: Tensor = 4 * (ROUNDOFF[dtype] * y64.abs() + ACCUMULATOR * self.terms**0.5 * scale)
        bound += self._quantum(dtype)
        return bound + self.share * scale if self.share else bound

    def _quantum(self, dtype: Dtype) -> float:
        """Return the spacing of subnormal numbers: a device may flush each subnormal term to zero."""
        info = torch.finfo(dtype)
        return float(
            info.smallest_normal * info.eps + self.terms * torch.finfo(torch.float32).smallest_normal
        )

    def allowed(self, norm: float, apart: float, reach: float, dtype: Dtype, size: int) -> float:
        """Return the bound of gate (b), from the norms of a result, torch's error and the scale."""
        u = ROUNDOFF[dtype]
        allowed = 3 * apart + u / 8 * norm + (ACCUMULATOR + self.share) * reach + self._quantum(dtype)
        return allowed + u * norm if size <= FEW else allowed

    def _gates(self, y: Tensor, y64: Tensor, like: Tensor, scale: Tensor) -> Agreement:
        if y.numel() == 0:
            return Agreement(True, 0.0)
        if self.bitwise or not y.dtype.is_floating_point:
            same = _same(y, like)
            return Agreement(same, 0.0 if same else float("inf"), "" if same else "must be equal bit for bit")
        info, u = torch.finfo(y.dtype), ROUNDOFF[y.dtype]
        wide, expected = y.double(), y64.to(y.dtype).double()
        # Only near the largest number can rounding make the difference between finite and infinite.
        edge = (y64.abs() / info.max - 1).abs() <= 4 * u
        if not torch.equal(wide.isnan(), expected.isnan()):
            came, wanted = int(wide.isnan().sum()), int(expected.isnan().sum())
            why = f"NaN must be where the reference has NaN: {came} outputs are NaN, {wanted} should be"
            return Agreement(False, float("inf"), why)
        special = expected.isinf() & ~edge
        if not torch.equal(wide[special], expected[special]) or bool((wide.isinf() & ~special & ~edge).any()):
            return Agreement(False, float("inf"), "infinities must be where the reference has them")
        finite = expected.isfinite() & wide.isfinite()
        wide, y64, scale = wide[finite], y64[finite], scale.broadcast_to(y.shape)[finite]
        error, bound = (wide - y64).abs(), self._bound(y64, scale, y.dtype)
        norm, apart, reach, rms = numbers(
            [_rms(y64), _rms((like[finite].double() - y64).abs()), _rms(scale), _rms(error)]
        )
        allowed = self.allowed(norm, apart, reach, y.dtype, y64.numel())
        relative = _relative(rms, norm, allowed)
        if bool((error > bound).any()):
            at = float((error / bound).max())
            return Agreement(False, relative, f"elementwise error is {at:.3g} times its bound")
        if rms > allowed:
            return Agreement(
                False, relative, f"root mean square error is {rms / allowed:.3g} times its bound"
            )
        return Agreement(True, relative)


def numbers(values: Sequence[Tensor]) -> list[float]:
    """Return numbers that may be on a device, which the host waits for once."""
    if len({v.device for v in values}) > 1:
        return [float(v) for v in values]
    return torch.stack([v.double() for v in values]).tolist() if values else []


def _beside(tensors: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    """Return the numbers of some tensors side by side."""
    flat = [tensors[i].reshape(-1) for i in places]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _norms(values: Tensor, sizes: list[int], order: float) -> tuple[Tensor, ...]:
    """Return the norm of each part of a vector."""
    return torch._foreach_norm(values.split(sizes), order)  # noqa: SLF001  it has no public name


def share_of(spec: OpSpec, args: tuple[Any, ...]) -> float:
    """Return the share of each term that a float32 call's precision class, or its factors, allow as error."""
    single = any(t.dtype is torch.float32 for t in leaves(args))
    if spec.rounds and not single:
        return max((ROUNDOFF.get(t.dtype, 0.0) for t in leaves(args)), default=0.0)
    return SHARE[spec.precision(args)] if single else 0.0


def widened(value: Any, half: bool = False) -> Any:
    """Return nested tensors in float64; with ``half``, those of 16 bits in float32 and others as they are."""
    if isinstance(value, Tensor):
        if half:
            return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
        return value.double() if value.dtype.is_floating_point else value
    return tuple(widened(v, half) for v in value) if isinstance(value, tuple | list) else value


def _relative(error: float, norm: float, allowed: float) -> float:
    """Return the relative error; where zeros would be within the allowed error, the absolute one."""
    return error / norm if norm > allowed else error


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt() if x.numel() else x.new_zeros(())


def _strides(x: Tensor) -> tuple[int, ...]:
    """Return the strides that matter: not those of size 1, nor those of an empty tensor."""
    if x.numel() == 0:
        return ()
    return tuple(s for n, s in zip(x.shape, x.stride(), strict=True) if n != 1)


def require_telling(
    truth: Truth, args: tuple[Any, ...], name: str, previous: tuple[Tensor, ...] = ()
) -> None:
    """Raise a VerificationError where a kernel that does nothing would pass a sample.

    That is where zeros, the mean, the first input or ``previous``, the outputs for other numbers, which
    memory may still hold, would pass both gates in place of every output.
    """
    if truth.bitwise:
        return  # compared bit for bit: a result that passes is right
    impostors = {
        "zeros": tuple(torch.zeros_like(y) for y in truth.torch),
        "the mean": tuple(y.double().mean().to(y.dtype).expand_as(y) for y in truth.torch),
    }
    first = next(leaves(args))
    if all(first.shape == y.shape and not _same(first, y) for y in truth.torch):
        impostors["the input"] = tuple(torch.empty_like(y).copy_(first) for y in truth.torch)
    if previous and not all(_same(was, y) for was, y in zip(previous, truth.torch, strict=True)):
        impostors["an earlier result"] = previous
    for what, impostor in impostors.items():
        if what == "the mean" and all(y.numel() == 1 for y in truth.torch):
            continue  # one number is its own mean
        if truth.judge(impostor, laid_out=False).ok:
            raise VerificationError(f"sample {name!r} can't distinguish {what} from the right result")


def _same(a: Tensor, b: Tensor) -> bool:
    # nan_to_num would replace an infinity by the largest number.
    return torch.equal(a, b) or (
        torch.equal(a.isnan(), b.isnan())
        and torch.equal(a.masked_fill(a.isnan(), 0), b.masked_fill(b.isnan(), 0))
    )


def agreement(
    call: Callable[..., Any], spec: OpSpec, args: tuple[Any, ...], truth: Truth | None = None
) -> Agreement:
    """Run ``call`` on ``args`` and compare. Inputs and process must be unchanged, and ``out`` written."""
    truth = truth or Truth.of(spec, args)
    inputs = without_out(spec, args)
    out = next((a for a, i in zip(args, inputs, strict=True) if a is not i), None)
    before = bits(leaves(inputs))
    device = next((t.device for t in leaves(inputs) if t.device.type != "cpu"), torch.device("cpu"))
    with torch.no_grad():
        state = State.now(device)
        result = call(*args)
        disturbed = disturbance(state, device, lambda: call(*args), lambda: spec.reference(*inputs))
    if disturbed:
        return Agreement(False, float("inf"), f"{UNCHANGED}: {disturbed}")
    if not same(before, bits(leaves(inputs))):
        return Agreement(False, float("inf"), "inputs must be left unchanged")
    if out is not None and (not isinstance(result, Tensor) or result.data_ptr() != out.data_ptr()):
        return Agreement(False, float("inf"), "out must be written and returned")
    found = truth.judge(result, laid_out=out is None)
    if found.ok and out is None:
        given, results = spans(list(leaves(inputs))), tuple(leaves(result))
        like = form(truth.torch, given)
        if why := misformed(results, like) or misplaced(results, like, given):
            return Agreement(False, float("inf"), why)
    return found


def without_out(spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``args`` with None for ``out``."""
    return tuple(None if p.kind == "out" else a for p, a in zip(spec.params, args, strict=True))
