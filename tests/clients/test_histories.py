"""Every message that the anthropic package's types allow is read, or refused by its type and place."""

import json
import os
import subprocess

import pytest

from tests.clients.test_clients import CLIENTS, HERE, PYTHON
from tests.protocol.test_histories import check_message

SAMPLED = HERE.parent / "support" / "sampled.py"
PACKAGES = CLIENTS / "anthropic"


@pytest.mark.slow
@pytest.mark.parametrize("types", ["anthropic.types MessageParam", "anthropic.types.beta BetaMessageParam"])
def test_every_message_of_anthropic_s_types_is_read_or_refused_by_type_and_place(types):
    assert (PACKAGES / ".installed").exists(), f"there is no {PACKAGES}; run make clients"
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    command = [*PYTHON, str(SAMPLED), *types.split(), "600"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout
    for message in json.loads(printed):
        check_message(message)
