"""One small convolution by several toolkits, all on one device."""
