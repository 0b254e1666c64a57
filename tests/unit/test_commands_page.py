"""docs/commands.md lists every command of both programs, with a sentence for each."""

from imagefleet.producer.commands.cli import main as producer
from imagefleet.worker.commands.cli import main as worker
from tools.commands_page import PAGE, commands_of, page


def test_the_page_lists_every_command() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"
    for program, group in (("imagefleet", producer), ("imagefleet-worker", worker)):
        for words, command in commands_of(group):
            sentence = command.get_short_help_str(limit=1000)
            assert sentence.endswith("."), words
            assert f"| `{' '.join([program, *words])}` | {sentence} |" in page()


def test_commands_of_groups_are_listed_with_their_group() -> None:
    listed = [words[:2] for words, _ in commands_of(producer)]
    assert ["bulk", "retry-failed"] in listed
    assert ["webhooks", "test"] in listed
    assert ["bulk"] not in [words[:1] for words in listed if len(words) == 1]
