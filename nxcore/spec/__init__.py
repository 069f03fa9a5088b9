"""What an operator, a call, a kernel and a device are, as data. May import settings and below."""
