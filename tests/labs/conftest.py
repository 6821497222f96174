"""The checkpoint and the sets of the tests of fine-tuning."""

from tests.model.tasks.conftest import pieces as pieces
from tests.model.tasks.conftest import pretrained as pretrained
from tests.model.tasks.conftest import sentiment as sentiment
from tests.model.tasks.conftest import shape as shape
from tests.model.tasks.conftest import vocab_file as vocab_file
