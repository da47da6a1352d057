"""Memory that a step frees serves the next one."""

import subprocess
import sys

import pytest

_PAGE_FAULTS_OF_A_SECOND_BLOCK = """
import resource, torch
from pipeline.models.devices import keep_freed_memory
{first}
def page_faults(num_mebibytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(num_mebibytes * 2**20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
page_faults(65)
print(page_faults(64))
"""


def _page_faults(first: str) -> int:
    program = _PAGE_FAULTS_OF_A_SECOND_BLOCK.format(first=first)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is told")
def test_a_block_smaller_than_one_before_it_costs_no_page_faults() -> None:
    num_pages = 64 * 2**20 // 4096
    assert _page_faults("keep_freed_memory()") < num_pages // 100
