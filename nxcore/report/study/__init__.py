"""The convolution study as pages: sentences computed from its record, Markdown, and HTML."""
