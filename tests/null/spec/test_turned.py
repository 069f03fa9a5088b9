"""Turned windows see the outputs that saw their pixels, and every pixel is in one of them."""

from nxcore.spec.turned import turned_windows
from nxcore.spec.window import Window
from tests.table import for_each


@for_each("kernel", [(3, 2), (1, 5)], ids=str)
@for_each("stride", [(1, 1), (2, 3), (4, 6)], ids=str)
@for_each("padding", [0, 1, 7])
@for_each("dilation", [(1, 1), (2, 3), (4, 1)], ids=str)
def test_a_turned_window_sees_what_saw_its_pixels(kernel, stride, padding, dilation):
    window = Window.of_convolution((13, 14), kernel, stride, padding, dilation)
    seen = [set() for _ in range(2)]  # of each axis: pixel, tap, output
    for axis, found in enumerate(seen):
        p, s, d = window.padding[axis], window.stride[axis], window.dilation[axis]
        for i in range(window.outputs[axis]):
            found |= {(i * s - p + a * d, a, i) for a in range(kernel[axis])}
    pixels, turned = set(), [set() for _ in range(2)]
    for part in turned_windows(window):
        own = part.window
        assert own.stride == (1, 1)
        assert own.image == window.outputs
        lines = []
        for axis, found in enumerate(turned):
            lines.append([part.first[axis] + i * stride[axis] for i in range(own.outputs[axis])])
            for i, pixel in enumerate(lines[-1]):
                for t in range(own.kernel[axis]):
                    output = i - own.padding[axis] + t * own.dilation[axis]
                    found.add((pixel, part.tap[axis] - t * part.step[axis], output))
        fresh = {(row, column) for row in lines[0] for column in lines[1]}
        assert not fresh & pixels
        pixels |= fresh
    assert len(pixels) == 13 * 14
    for axis in range(2):
        size, outputs = window.image[axis], window.outputs[axis]
        assert {t for t in turned[axis] if 0 <= t[2] < outputs} == {t for t in seen[axis] if 0 <= t[0] < size}
