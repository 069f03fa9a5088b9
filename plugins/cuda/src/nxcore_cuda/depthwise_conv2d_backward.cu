// depthwise_conv2d_backward: what depthwise_conv2d is made of, turned round, and the filters' gradients.
#pragma once
#include "depthwise_any.cuh"
#include "depthwise_pixels.cuh"
#include "depthwise_slide.cuh"
#include "depthwise_spread.cuh"
