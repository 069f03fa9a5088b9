"""Print what the pages show and nobody runs, each with its reason: ``python -m tests.pages``."""

from tests.pages.blocks import blocks, pages

for page in pages():
    for block in blocks(page):
        for mark in block.given("not run"):
            print(f"{block}: {mark.command or block.text.strip().splitlines()[0]}: {mark.text}")
