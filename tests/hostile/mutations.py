"""Our own kernels, broken on purpose: what is changed in which file, and which operators must be refused.

Five ways, each a bug that somebody has shipped: a mask is dropped, sums are rounded to 16 bits on their
way, a stride is another's, softmax doesn't subtract the maximum, NaN is dropped. Each stands in the source
of the kernel as text, which must occur exactly as often as is said here: a mutation can't rot.
"""

from dataclasses import dataclass
from typing import Any

MASK, BITS, STRIDE, TOP, NAN = "mask", "16 bits", "stride", "max subtraction", "nan"
KINDS = (MASK, BITS, STRIDE, TOP, NAN)

SUMS = ("sum", "mean", "sum_to_size", "add_backward", "global_avg_pool2d")
FLAGS = ("any", "all")
INDEXED = ("max", "min", "argmax", "argmin")
ELEMENTS = ("amax", "amin", *INDEXED)
FOLDS = (*FLAGS, *ELEMENTS)
BLENDS = ("softmax_sum", "softmax_sum_backward")
LARGEST = ("max_pool2d", "max_pool2d_with_offsets")
LARGEST_OF_ALL = ("global_max_pool2d", "global_max_pool2d_with_offsets")
GLOBAL_BACK = ("global_max_pool2d_backward",)
MEANS = ("avg_pool2d", "avg_pool2d_backward")
FILTERED = ("depthwise_conv2d", "depthwise_conv2d_backward")
SEPARABLE = ("sep_conv2d", "sep_conv2d_backward")
PRODUCT, COLUMNS = ("matmul",), ("column_sums",)
DIRECT, DIRECT_BACK = ("conv2d",), ("conv2d_backward",)
POINTS, POINTS_BACK = ("pointwise_conv2d",), ("pointwise_conv2d_backward",)
NORM, NORM_BACK = "batch_norm", "batch_norm_backward"
NORMS = (NORM, NORM_BACK)
NORM_SUMS = ("batch_norm_sum", "batch_norm_sum_backward")
IMAGES = (*LARGEST, "max_pool2d_backward", *MEANS, *FILTERED)
ROWS = ("entropy", "entropy_backward", "gumbel_softmax", "gumbel_softmax_backward")
SCANS = ("cumsum", "cumsum_backward")
AXIS, AXIS_BACK = ("softmax", "log_softmax"), ("softmax_backward", "log_softmax_backward")
LAST = tuple(f"{op}{back}" for op in ("rms_norm", "layer_norm") for back in ("", "_backward"))
LOSSES, GROUP = ("cross_entropy", "cross_entropy_backward"), ("group_norm", "group_norm_backward")
ROPE, LOOKUP = ("rope", "rope_backward"), ("embedding",)
SCATTERS = ("index_add", "embedding_dense_backward")
BLOCKS = ("sep_conv2d_batch_norm", "sep_conv2d_batch_norm_backward")
FOREACH = ("foreach_sep_conv2d_batch_norm", "foreach_sep_conv2d_batch_norm_backward")
ALIKE = ("weighted_sum", "weighted_sum_backward", "matmul_backward", "embedding_backward", *BLOCKS, *FOREACH)
"""What the kernels of other operators run: of BLENDS, PRODUCT, SCATTERS, SEPARABLE and NORMS, which in CUDA
C++ also leave moments."""

OPS = (
    "add",
    *PRODUCT,
    *DIRECT,
    *DIRECT_BACK,
    *COLUMNS,
    *POINTS,
    *POINTS_BACK,
    *SUMS,
    *FOLDS,
    *BLENDS,
    *IMAGES,
    *LARGEST_OF_ALL,
    *GLOBAL_BACK,
    *ROWS,
    *SCANS,
    *AXIS,
    *AXIS_BACK,
    *LAST,
    *LOSSES,
    *GROUP,
    *ROPE,
    *LOOKUP,
    *SCATTERS,
    *SEPARABLE,
    *NORMS,
    *NORM_SUMS,
)
VIEWS = ("sum_backward", "mean_backward", "sum_to_size_backward", "global_avg_pool2d_backward")
"""What has no kernel: its results are views."""
TORCHS = (
    *("amax_backward", "amin_backward", "max_backward", "min_backward"),
    *("linear_cross_entropy", "scaled_dot_product_attention", "index_add_backward"),
)
"""What no plugin that is broken here has a kernel of: torch, or a library, computes it."""
OF_NUMBA_CUDA = (
    *("add", "max_pool2d_backward", "weighted_sum", "weighted_sum_backward"),
    *(*SUMS, *BLENDS, *LARGEST, *LARGEST_OF_ALL, *GLOBAL_BACK, *MEANS),
)
"""All that it has a kernel of."""
NOT_IN = {
    "triton": ("embedding_backward", *SCATTERS, *COLUMNS, *POINTS, *POINTS_BACK, *NORM_SUMS, *FOREACH),
    "numba": (
        *(*PRODUCT, "matmul_backward", "embedding_backward", *SCANS, *LOOKUP, *SCATTERS, *COLUMNS),
        *(*POINTS, *POINTS_BACK, *NORM_SUMS, *FOREACH, *SEPARABLE, *BLOCKS),
    ),
    "numba-cuda": tuple(op for op in (*OPS, *ALIKE) if op not in OF_NUMBA_CUDA),
}
"""What a backend has no kernel of: on a CPU, torch runs a vendor's library; on a GPU, others have one."""


@dataclass(frozen=True)
class Edit:
    """One change of a text.

    Attributes
    ----------
    find, replace : str
        What is there, and what comes in its place.
    count : int
        How often it is there.
    """

    find: str
    replace: str
    count: int = 1


@dataclass(frozen=True)
class Mutation:
    """One way to break a source file.

    Attributes
    ----------
    kind : str
        One of ``KINDS``.
    file : str
        Beside the plugin's ``__init__.py``.
    ops : tuple of str
        The operators that it breaks: each must be refused.
    edits : tuple of Edit
        The change.
    raises : str
        What it is allowed to raise, where the simulator itself finds it out; any other error is no refusal.
    likely : str
        Part of the name of the sample to try first, where the others take long.
    slow : bool
        Left to a run of all, since another of its kind breaks the same file.
    why : str
        What the bug is, where the change doesn't tell.
    """

    kind: str
    file: str
    ops: tuple[str, ...]
    edits: tuple[Edit, ...]
    raises: str = ""
    likely: str = ""
    slow: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        """What a test calls it."""
        return f"{self.file}: {self.kind}, {'/'.join(self.ops)}"


def one(
    kind: str, file: str, ops: tuple[str, ...], find: str, replace: str, *, count: int = 1, **how: Any
) -> Mutation:
    """Return the mutation that is one edit."""
    return Mutation(kind, file, ops, (Edit(find, replace, count),), **how)


NO_WEIGHTS = "it has no softmax"
NEVER_ADDS = "it compares and never adds up"
PASSES_NAN = "NaN passes through its arithmetic: no line treats it"

SHORT = "a row has few terms: rounded on their way, they stay within what the result's own 16 bits lose"

TREATS_NAN = (
    *(*BLENDS, *ELEMENTS, *LARGEST, *LARGEST_OF_ALL, *ROWS, *AXIS, *LOSSES, *POINTS, *POINTS_BACK),
    *(*SEPARABLE, "depthwise_conv2d_backward"),
)
"""What a line of a kernel treats NaN in."""

NONE_SUCH = {
    **{(op, TOP): NO_WEIGHTS for op in OPS if op not in (*BLENDS, *ROWS, *AXIS, *LOSSES)},
    **{(op, BITS): SHORT for op in ROWS},
    **{(op, BITS): NEVER_ADDS for op in (*FOLDS, *LARGEST, *LARGEST_OF_ALL, *GLOBAL_BACK, *LOOKUP)},
    **{(op, NAN): PASSES_NAN for op in OPS if op not in TREATS_NAN},
}
"""What there is nothing of in any backend's kernel of an operator, and why."""

NONE_SUCH_IN = {
    backend: {(op, kind): "it has no kernel of it" for op in ops for kind in KINDS}
    for backend, ops in NOT_IN.items()
}
NONE_SUCH_IN["triton"]["depthwise_conv2d_backward", NAN] = (
    "it never meets what lies past the outputs, and treats no NaN"
)
"""What there is nothing of in one backend's kernel of an operator, and why."""
