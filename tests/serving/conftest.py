import pytest
from tests.serving.support import tiny_flux


@pytest.fixture(scope="module")
def pipe():
    return tiny_flux()
