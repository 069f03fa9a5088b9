"""Separable convolutions on the CPU, image by image: planes with their padding, and products of matrices.

A call's sizes are a table: images, channels, channels out; then down and across of the image, the outputs,
the filter, the stride, the dilation, the padding before, and the planes.
"""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore_numba import threads
from nxcore_numba.half import FLOAT, KINDS, store_any
from nxcore_numba.image import read, write

I64 = types.int64
TABLES = (types.int64[:, ::1], types.int64[:, ::1], types.boolean, I64)
COUNT, IMAGE, OUTPUTS, KERNEL, STRIDE, DILATION, PADDING, PLANE = range(8)
GROUPS = 64
"""How many parts the images are shared out in, at most."""


@threads.jit
def pair(sizes, which):
    """Return a row of the table: down and across."""
    return sizes[which, 0], sizes[which, 1]


@threads.jit
def rows(to, memory, base, steps, planes, size, corner, kind):
    """Read the rows of an image's planes, of any type and stride, to ``corner`` in each plane of ``to``."""
    _, deep, pitch = to.shape
    start = to.ctypes.data
    for c in range(planes):
        for i in range(size[0]):
            at = (c * deep + corner[0] + i) * pitch + corner[1]
            read(start, at, memory, base + c * steps[1] + i * steps[2], steps[3], size[1], kind)


@threads.jit
def write_rows(memory, base, steps, planes, size, corner, found, kind):
    """Write rows from ``corner`` in each plane of ``found``, rounding what has to be."""
    _, deep, pitch = found.shape
    start = found.ctypes.data
    for c in range(planes):
        for i in range(size[0]):
            at = (c * deep + corner[0] + i) * pitch + corner[1]
            write(memory, base + c * steps[1] + i * steps[2], steps[3], start, at, size[1], kind)


@threads.jit
def weights(sizes, dw, pw, steps, kind):
    """Return the filters and the matrix in float32."""
    _, channels, made = sizes[COUNT]
    high, wide = pair(sizes, KERNEL)
    filters, points = np.empty((channels, high, wide), np.float32), np.empty((1, made, channels), np.float32)
    of_filters = np.array([0, steps[2, 0], steps[2, 2], steps[2, 3]])
    of_points = np.array([0, 0, steps[3, 0], steps[3, 1]])
    rows(filters, dw, 0, of_filters, channels, (high, wide), (0, 0), kind)
    rows(points, pw, 0, of_points, 1, (made, channels), (0, 0), kind)
    return filters, points[0]


@threads.jit
def positive(planes):
    """Put zeros in place of what is negative; NaN stays."""
    flat = planes.reshape(-1)
    for i in range(len(flat)):
        flat[i] = FLOAT if flat[i] < 0 else flat[i]


@threads.jit(fastmath={"contract"})
def add_row(to, x, factor, step):
    """Add a row times a number; ``step`` elements of x apart."""
    if step == 1:
        for j in range(len(to)):
            to[j] += factor * x[j]
    else:
        for j in range(len(to)):
            to[j] += factor * x[j * step]


@threads.jit(fastmath={"contract"})
def spread_row(to, x, factor, step):
    """Add a row times a number to every ``step``-th element."""
    if step == 1:
        for j in range(len(x)):
            to[j] += factor * x[j]
    else:
        for j in range(len(x)):
            to[j * step] += factor * x[j]


@threads.jit(fastmath={"contract", "reassoc"})
def dot(x, y, step):
    """Return the sum of products; ``step`` elements of y apart."""
    total = FLOAT
    if step == 1:
        for j in range(len(x)):
            total += x[j] * y[j]
    else:
        for j in range(len(x)):
            total += x[j] * y[j * step]
    return total


@threads.jit
def depthwise(u, planes, filters, sizes):
    """Write each channel's convolution."""
    s, d = pair(sizes, STRIDE), pair(sizes, DILATION)
    u[:] = FLOAT
    for c in range(len(u)):
        for i in range(u.shape[1]):
            for a in range(filters.shape[1]):
                row = planes[c, i * s[0] + a * d[0]]
                for b in range(filters.shape[2]):
                    add_row(u[c, i], row[b * d[1] :], filters[c, a, b], s[1])


@threads.jit(fastmath={"contract"})
def multiply(to, matrix, given):
    """Write ``matrix @ given``, four rows of ``given`` at a time."""
    whole = matrix.shape[1] // 4 * 4
    for o in range(len(to)):
        out = to[o]
        out[:] = FLOAT
        for c in range(0, whole, 4):
            k, m, n, q = matrix[o, c], matrix[o, c + 1], matrix[o, c + 2], matrix[o, c + 3]
            w, x, y, z = given[c], given[c + 1], given[c + 2], given[c + 3]
            for j in range(len(out)):
                out[j] += k * w[j] + m * x[j] + n * y[j] + q * z[j]
        for c in range(whole, matrix.shape[1]):
            add_row(out, given[c], matrix[o, c], 1)


@threads.jit
def forward_part(out, x, dw, pw, sizes, steps, relu, kind, p, parts):
    """Compute one of so many parts of the images."""
    images, channels, made = sizes[COUNT]
    high, wide = pair(sizes, OUTPUTS)
    filters, points = weights(sizes, dw, pw, steps, kind)
    planes = np.zeros((channels, sizes[PLANE, 0], sizes[PLANE, 1]), np.float32)
    u, y = np.empty((channels, high, wide), np.float32), np.empty((made, high, wide), np.float32)
    for n in range(p * images // parts, (p + 1) * images // parts):
        corner, image = pair(sizes, PADDING), pair(sizes, IMAGE)
        rows(planes, x, n * steps[1, 0], steps[1], channels, image, corner, kind)
        if relu:
            positive(planes)
        depthwise(u, planes, filters, sizes)
        multiply(y.reshape(made, -1), points, u.reshape(channels, -1))
        write_rows(out, n * steps[0, 0], steps[0], made, (high, wide), (0, 0), y, kind)


@threads.jit
def forward_serial(out, x, dw, pw, sizes, steps, relu, kind):
    """Compute on one thread."""
    forward_part(out, x, dw, pw, sizes, steps, relu, kind, 0, 1)


@threads.jit(parallel=True)
def forward_parallel(out, x, dw, pw, sizes, steps, relu, kind):
    """Compute on all threads."""
    parts = min(sizes[COUNT, 0], GROUPS)
    for p in prange(parts):
        forward_part(out, x, dw, pw, sizes, steps, relu, kind, p, parts)


@threads.jit
def backward_image(inner, planes, back, filters, sizes, totals):
    """Add one image's share of the filters' gradient, and write that of the image, in its planes."""
    s, d = pair(sizes, STRIDE), pair(sizes, DILATION)
    back[:] = FLOAT
    for c in range(len(inner)):
        for a in range(filters.shape[1]):
            for b in range(filters.shape[2]):
                total = FLOAT
                for i in range(inner.shape[1]):
                    row = i * s[0] + a * d[0]
                    spread_row(back[c, row, b * d[1] :], inner[c, i], filters[c, a, b], s[1])
                    total += dot(inner[c, i], planes[c, row, b * d[1] :], s[1])
                totals[c, a, b] += np.float64(total)


@threads.jit
def mask(back, planes):
    """Put zeros in place of the gradient where nothing positive came."""
    gradient, given = back.reshape(-1), planes.reshape(-1)
    for i in range(len(gradient)):
        gradient[i] = FLOAT if given[i] <= 0 else gradient[i]


@threads.jit
def backward_part(x_grad, grad, x, dw, pw, sizes, steps, relu, kind, wanted, of_filters, of_points, p, parts):
    """Compute one of so many parts of the images, and its share of the weights' gradients."""
    images, channels, made = sizes[COUNT]
    high, wide = pair(sizes, OUTPUTS)
    filters, points = weights(sizes, dw, pw, steps, kind)
    turned = points.T.copy()
    planes = np.zeros((channels, sizes[PLANE, 0], sizes[PLANE, 1]), np.float32)
    back, u = np.empty_like(planes), np.empty((channels, high, wide), np.float32)
    g, inner = np.empty((made, high, wide), np.float32), np.empty_like(u)
    for n in range(p * images // parts, (p + 1) * images // parts):
        corner, image = pair(sizes, PADDING), pair(sizes, IMAGE)
        rows(planes, x, n * steps[1, 0], steps[1], channels, image, corner, kind)
        rows(g, grad, n * steps[0, 0], steps[0], made, (high, wide), (0, 0), kind)
        if relu:
            positive(planes)
        if wanted & 4:
            depthwise(u, planes, filters, sizes)
            for o in range(made):
                for c in range(channels):
                    of_points[o, c] += np.float64(dot(g[o].reshape(-1), u[c].reshape(-1), 1))
        if wanted & 3:
            multiply(inner.reshape(channels, -1), turned, g.reshape(made, -1))
            backward_image(inner, planes, back, filters, sizes, of_filters)
        if wanted & 1:
            if relu:
                mask(back, planes)
            write_rows(x_grad, n * steps[4, 0], steps[4], channels, image, corner, back, kind)


@threads.jit
def finish(dw_grad, pw_grad, steps, wanted, of_filters, of_points, kind):
    """Add up the groups in order and write the weights' gradients."""
    groups, channels, high, wide = of_filters.shape
    for c in range(channels):
        for a in range(high):
            for b in range(wide):
                total = 0.0
                for g in range(groups):
                    total += of_filters[g, c, a, b]
                if wanted & 2:
                    store_any(dw_grad, c * steps[5, 0] + a * steps[5, 2] + b * steps[5, 3], total, kind)
        for o in range(of_points.shape[1]):
            total = 0.0
            for g in range(groups):
                total += of_points[g, o, c]
            if wanted & 4:
                store_any(pw_grad, o * steps[6, 0] + c * steps[6, 1], total, kind)


@threads.jit
def backward_serial(x_grad, dw_grad, pw_grad, grad, x, dw, pw, sizes, steps, relu, kind, wanted):
    """Compute on one thread."""
    images, channels, made = sizes[COUNT]
    groups = min(images, GROUPS)
    of_filters = np.zeros((groups, channels, sizes[KERNEL, 0], sizes[KERNEL, 1]))
    of_points = np.zeros((groups, made, channels))
    for p in range(groups):
        backward_part(
            x_grad, grad, x, dw, pw, sizes, steps, relu, kind, wanted, of_filters[p], of_points[p], p, groups
        )
    finish(dw_grad, pw_grad, steps, wanted, of_filters, of_points, kind)


@threads.jit(parallel=True)
def backward_parallel(x_grad, dw_grad, pw_grad, grad, x, dw, pw, sizes, steps, relu, kind, wanted):
    """Compute on all threads."""
    images, channels, made = sizes[COUNT]
    groups = min(images, GROUPS)
    of_filters = np.zeros((groups, channels, sizes[KERNEL, 0], sizes[KERNEL, 1]))
    of_points = np.zeros((groups, made, channels))
    for p in prange(groups):
        backward_part(
            x_grad, grad, x, dw, pw, sizes, steps, relu, kind, wanted, of_filters[p], of_points[p], p, groups
        )
    finish(dw_grad, pw_grad, steps, wanted, of_filters, of_points, kind)


def tables(window, y, x, dw, pw, *outputs):
    """Return the sizes, and the strides of y, x, both weights and ``outputs``, None for one not requested."""
    left, right, above, below = window.padded
    plane = (above + window.image[0] + below, left + window.image[1] + right)
    images = x.shape[0] if x.ndim == 4 else 1
    pairs = (
        window.image, window.outputs, window.kernel, window.stride, window.dilation, window.padding, plane
    )  # fmt: skip
    sizes = np.array([(images, x.shape[-3], pw.shape[0]), *((*pair, 0) for pair in pairs)], np.int64)
    strides = [
        (0,) * 4 if t is None else (0,) * (4 - t.ndim) + tuple(t.strides) for t in (y, x, dw, pw, *outputs)
    ]
    return sizes, np.array(strides, np.int64)


def forward(window, out, x, dw, pw, relu):
    """Return the kernel, taking ``(out, x, dw_weight, pw_weight)`` as addresses."""
    signature = types.void(I64, I64, I64, I64, *TABLES)
    work = out.numel() * (x.shape[-3] // 8 + 1)
    kernel = threads.team(forward_serial, forward_parallel, signature, work)
    rest = (*tables(window, out, x, dw, pw), relu, KINDS[x.dtype])
    return lambda *addresses: kernel(*addresses, *rest)


def backward(window, grad, x, dw, pw, outputs, relu):
    """Return the kernel, taking ``outputs``, grad, x and both weights as addresses, 0 for None."""
    signature = types.void(*(I64,) * 7, *TABLES, I64)
    wanted = sum(1 << i for i, out in enumerate(outputs) if out is not None)
    work = grad.numel() * (x.shape[-3] // 8 + 1)
    kernel = threads.team(backward_serial, backward_parallel, signature, work)
    rest = (*tables(window, grad, x, dw, pw, *outputs), relu, KINDS[x.dtype], wanted)
    return lambda *addresses: kernel(*addresses, *rest)
