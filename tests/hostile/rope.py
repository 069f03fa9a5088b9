"""Mutations of the kernels of rope, in every toolkit."""

from tests.hostile.mutations import BITS, MASK, ROPE, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import half
from tests.hostile.of_numba import ROUND
from tests.hostile.of_triton import HALF

MANY = {"likely": "many_heads", "why": "rows behind the last that the same angles turn"}

CUDA = (
    one(MASK, "rope.cu", ROPE, "left < a.rows ? (int)left : a.rows", "a.rows", **MANY),
    one(BITS, "rope.cu", ROPE, "one[k] = x0 * cos[0][k] -", f"one[k] = {half('x0 * cos[0][k]')} -"),
    one(STRIDE, "rope.cu", ROPE, "first * a.entry[0]);", "first);"),
)

TRITON = (
    one(MASK, "rope.py", ROPE, "(row < count) & (r < repeats)", "row < count", **MANY),
    one(BITS, "rope.py", ROPE, "x0 * c0 - x1 * s0", f"(x0 * c0){HALF} - x1 * s0"),
    one(STRIDE, "rope.py", ROPE, "(column * entry)[None, :]", "column[None, :]", count=2),
)

TURNED = "        first = one * load(cos[0], cos[1] + i * cs, kind) - two * by\n"
PRODUCT = (
    f"        product = two * by\n        {ROUND.format('product')}\n{TURNED.replace('two * by', 'product')}"
)

NUMBA = (
    one(MASK, "rope.py", ROPE, "2 * pairs + rest)", "2 * pairs + rest - 1)", likely="a_part"),
    Mutation(
        BITS,
        "rope.py",
        ROPE,
        (
            Edit('@threads.jit(fastmath={"contract"})\ndef turn(', "@threads.jit\ndef turn("),
            Edit(TURNED, PRODUCT),
        ),
    ),
    one(STRIDE, "rope.py", ROPE, "turn(of_x, step * xe, of_cos", "turn(of_x, step, of_cos"),
)
