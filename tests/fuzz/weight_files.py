"""Draw files of LoRA and of textual inversions, and read each in a process of its own.

A file is accepted, or refused in one sentence that names it. The process is started at the first
case, and again after it ended.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from hypothesis import strategies as st

from tests.fuzz.cases import WeightsCase
from tests.fuzz.ledger import Ledger, Problem
from tests.fuzz.tensor_files import tensor_files
from tests.fuzz.values import ANY_TEXT, JSON_VALUES, NASTY_TEXT

ROOT: Final = Path(__file__).parents[2]
_FIXTURES: Final = ROOT / "tests" / "fixtures" / "parity"
_MAX_S: Final = 120.0
MAX_PEAK_MB: Final = 400.0
"""A header of 8 MiB that lists empty tensors takes most, and a process keeps some of it."""
_MAX_SENTENCE: Final = 4_000
_SETTINGS: Final = (
    *("alpha_pattern", "lora_alpha", "use_dora", "use_rslora", "lora_bias", "init_lora_weights"),
    *("r", "rank_pattern", "target_modules"),
)
_PATTERNS: Final = (
    *("a{99999999999}", "(?i)a", "(", "a)(b", "[", "*", ".*", "", "(?P<x>a)", "\\1", "(?<=a*)b"),
    *(
        "(" * 5_000 + ")" * 5_000,
        "\x1b[31m",
        "to_k",
        r"(\w+)*x",
        ".*.*.*x",
        ".*.*.*.*.*.*x",
        "\ud800",
    ),
)
_BASES: Final = {
    ("older", "inversions"): ("diffusers", "half", "web_ui"),
    ("older", "loras"): ("kohya", "peft", "processors", "peft_xl"),
    ("xl", "inversions"): ("xl", "xl_one", "half"),
    ("xl", "loras"): ("kohya_xl", "peft_xl", "peft"),
}
"""Files that fit the model, and one that does not."""
_ALPHAS: Final[st.SearchStrategy[Any]] = st.sampled_from([0, 1, 8.0, 1e308, -1, 10**400, "8", None])


def _settings_of_peft() -> st.SearchStrategy[str]:
    names = st.sampled_from(_SETTINGS) | ANY_TEXT
    networks = st.sampled_from(["unet", "text_encoder", "text_encoder_2", "x"])
    patterns = st.dictionaries(st.sampled_from(_PATTERNS) | ANY_TEXT, _ALPHAS, max_size=3)
    fields = st.dictionaries(
        st.builds(lambda network, name: f"{network}.{name}", networks, names),
        JSON_VALUES | patterns | patterns | _ALPHAS,
        max_size=3,
    )
    texts = st.sampled_from(["[" * 100_000, '{"a":' * 5_000, "{", "null", "[]", "9" * 5_000])
    return fields.map(json.dumps) | JSON_VALUES.map(json.dumps) | texts | NASTY_TEXT


@st.composite
def weight_files(draw: st.DrawFn) -> WeightsCase:
    """Draw a file and the setting that names it."""
    setting = draw(st.sampled_from(["lora", "job_lora", "textual_inversion"]))
    model = draw(st.sampled_from(["older", "xl"]))
    kind = "inversions" if setting == "textual_inversion" else "loras"
    bases = tuple(
        (_FIXTURES / kind / f"{name}.safetensors").read_bytes() for name in _BASES[model, kind]
    )
    metadata = st.fixed_dictionaries({"lora_adapter_metadata": _settings_of_peft()})
    data = draw(tensor_files(bases, metadata))
    return WeightsCase(id="", setting=setting, model=model, data=data)


class WeightsReader:
    """`with WeightsReader() as reader`: it reads the files of cases, and checks the answers."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-weights-")
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def check(self, cases: Sequence[WeightsCase], ledger: Ledger) -> list[Problem]:
        """Read the files, count the outcomes, and return what went wrong."""
        problems = []
        for case in cases:
            path = Path(self._folder.name) / "file.safetensors"
            path.write_bytes(case.data)
            outcome, peak_mb, wrong = self._read(case, path)
            ledger.count(f"file of {case.setting}", outcome)
            ledger.raise_to("MB to read a file of weights", round(peak_mb))
            if wrong:
                sentence = ascii(f"a file of {case.setting}: {wrong:.500}")
                problems.append(Problem(sentence=sentence, suspects=[case.id]))
        return problems

    def _read(self, case: WeightsCase, path: Path) -> tuple[str, float, str]:
        """Return the outcome, the memory that it took, and what is wrong with it or ''."""
        try:
            answer = self._ask({"setting": case.setting, "model": case.model, "path": str(path)})
        except (OSError, ValueError, TimeoutError) as error:
            code = self._process.poll() if self._process else None
            self._stop()
            return "no answer", 0.0, f"no answer ({type(error).__name__}), exit code {code}"
        sentence, peak_mb = answer["sentence"], answer["peak_mb"]
        wrong = ""
        if answer["outcome"] == "error":
            wrong = sentence
        elif peak_mb > MAX_PEAK_MB:
            wrong = f"it took {peak_mb:.0f} MB of memory"
        elif sentence and (str(path) not in sentence or len(sentence) > _MAX_SENTENCE):
            wrong = f"a sentence of {len(sentence)} characters: {sentence}"
        return answer["outcome"], peak_mb, wrong

    def _ask(self, question: dict[str, str]) -> dict[str, Any]:
        if self._process is None:
            command = [sys.executable, "-m", "tests.fuzz.read_weights"]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in
        assert pipe_out
        pipe_in.write(f"{json.dumps(question)}\n")
        pipe_in.flush()
        answer: dict[str, Any] = json.loads(self._threads.submit(pipe_out.readline).result(_MAX_S))
        return answer

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(OSError):
                self._process.communicate()
            self._process = None
