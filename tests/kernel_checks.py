"""Checks of the Triton operators against fp64, on a GPU or in Triton's interpreter."""

import torch
import torch.nn.functional as F

from model import kernels


def near(found, exact, rtol):
    """The error's norm is at most ``rtol`` of the norm; NaN is far from everything."""
    error = (found.double() - exact.double()).norm() / exact.double().norm()
    assert error <= rtol, f"relative error {error:.2e}"


def check_cross_entropy(device, rows, columns, seed, dtype, rtol):
    """Loss and gradient, where every third target is masked."""
    torch.manual_seed(seed)
    logits = (3 * torch.randn(rows, columns, device=device)).to(dtype)
    targets = torch.randint(0, columns, (rows,), device=device)
    targets[1::3] = -100
    leaf = logits.double().requires_grad_()
    exact = F.cross_entropy(leaf, targets)
    exact.backward()
    near(kernels.cross_entropy(logits, targets), exact.detach(), 1e-5)
    near(logits, leaf.grad, rtol)
    assert not logits[1::3].any()


def check_norm_backward(device, rows, columns, seed, dtype, rtol):
    """The gradient of x with that of the others added, of weight and bias, and its column sums."""
    torch.manual_seed(seed)
    x, grad_y, grad_x = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(3))
    weight, bias = torch.randn(2, columns, device=device)
    leaves = [one.double().requires_grad_() for one in (x, weight, bias)]
    F.layer_norm(leaves[0], (columns,), *leaves[1:]).backward(grad_y.double())
    exact = leaves[0].grad + grad_x.double()
    _, mean, rstd = torch.native_layer_norm(x.float(), (columns,), weight, bias, 1e-5)
    found, sums = kernels.norm_backward(grad_y, grad_x, x, mean, rstd, weight)
    near(found, exact, rtol)
    near(sums[0], leaves[1].grad, 1e-4)
    near(sums[1], leaves[2].grad, 1e-5)
    near(sums[2], exact.sum(0), 1e-4)


def check_pack(device, rows, columns, seed, dtype):
    """The concatenation, and its column sums."""
    torch.manual_seed(seed)
    parts = [torch.randn(rows, columns, device=device).to(dtype) for _ in range(3)]
    exact = torch.cat(parts, dim=1)
    found, sums = kernels.pack(*parts)
    assert torch.equal(found, exact)
    near(sums, exact.double().sum(0), 1e-5)
