"""The bake-off: wrong and right kernels, judged by the rules of five public harnesses and by ``verify``."""
