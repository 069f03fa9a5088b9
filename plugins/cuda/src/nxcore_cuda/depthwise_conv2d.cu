// depthwise_conv2d: filters of 3, 5 and 7 slide over planes or over pixels; any other call, an output a thread.
#pragma once
#include "depthwise_any.cuh"
#include "depthwise_pixels.cuh"
#include "depthwise_slide.cuh"
