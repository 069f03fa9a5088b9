"""The convolution study: one small convolution by several toolkits, all on one device."""
