"""From a source to a launch: compilers, images, the driver, the launcher."""
