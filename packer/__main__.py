"""`python -m packer` is `packer`."""

from packer.cli import main

if __name__ == "__main__":
    main(prog_name="packer")
