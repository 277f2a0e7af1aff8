"""What is measured of a finished folder: numbers, no printing."""
