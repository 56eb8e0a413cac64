import subprocess
import sys

import pytest
from autoshard_models import CATALOGUE


def test_importing_the_catalogue_is_cheap():
    code = "import sys, autoshard_models; assert not {'torch', 'transformers', 'autoshard'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_entries_are_named_and_sourced(name):
    entry = CATALOGUE[name]
    assert entry.name == name
    assert entry.reference
    assert (entry.target is None) == (entry.kind == "transformers")


def test_gpt_moe_paper_scale_counts_by_hand():
    # h = 12288, 80 layers. Per layer: q, o 2 h^2 = 301,989,888; k, v 2 h 1024 = 25,165,824; router 16 h = 196,608;
    # experts 16 * 2 * 4 h^2 = 19,327,352,832; two LayerNorms 4 h = 49,152.   Sum 19,654,754,304.
    # Embedding and head 2 * 51200 h = 1,258,291,200; final LayerNorm 2 h = 24,576.
    assert CATALOGUE["gpt-moe-1.6t"].num_parameters == 80 * 19_654_754_304 + 1_258_291_200 + 24_576
    assert round(CATALOGUE["gpt-moe-1.6t"].num_parameters / 1e12, 1) == 1.6
